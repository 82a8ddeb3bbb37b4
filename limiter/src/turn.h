/* Turns on a GPU: when this process may launch there. */
#ifndef GPUSLICE_TURN_H
#define GPUSLICE_TURN_H

#include <stdint.h>

#include "api.h"

/* Waits until a launch can start. Here and below a stream is given by its name (flight.h). */
void turn_take(int cell, uint64_t key, CUstream stream);
/* After a launch for which turn_take was called. */
void turn_launched(int cell);

#endif
