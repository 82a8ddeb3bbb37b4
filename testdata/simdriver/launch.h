/* What the ways to launch a kernel share. */
#ifndef SIMDRIVER_LAUNCH_H
#define SIMDRIVER_LAUNCH_H

#include "driver.h"

struct launch {
	CUfunction f;
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void **params, **extra;
};

bool bad_shape(const struct launch *l);
/* Checks it and puts the kernel into its stream. Takes the process lock. */
CUresult launch(const struct launch *l);

#endif
