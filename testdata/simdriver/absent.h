/* The functions of absent.def; their parameters don't matter. */
#ifndef SIMDRIVER_ABSENT_H
#define SIMDRIVER_ABSENT_H

#include "cuda_api.h"

#include <limits.h>

#define BY_NAME INT_MAX

#pragma GCC visibility push(default)
#define SYM(name, base, version, kind) CUresult name(void);
#include "absent.def"
#undef SYM
#pragma GCC visibility pop

#endif
