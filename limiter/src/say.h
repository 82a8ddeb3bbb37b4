/* One line on stderr, for a person who wonders why CUDA is refused. */
#ifndef GPUSLICE_SAY_H
#define GPUSLICE_SAY_H

#include <stdatomic.h>

/* Says it once for each `once`, a flag of the caller's. */
__attribute__((format(printf, 2, 3)))
void say(_Atomic unsigned *once, const char *format, ...);

#endif
