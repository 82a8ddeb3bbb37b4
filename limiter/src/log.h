/* One line on stderr that explains why a CUDA call is refused. */
#ifndef GPUSLICE_LOG_H
#define GPUSLICE_LOG_H

#include <stdatomic.h>

/* Writes "gpuslice: ", the formatted text and a newline to stderr, and sets *once. Does nothing
 * if *once is set: each caller passes a flag of its own, so its line appears once in a process.
 * Longer text is cut to 512 bytes. Errors of the write are ignored, errno does not change. */
__attribute__((format(printf, 2, 3)))
void log_line(_Atomic unsigned *once, const char *format, ...);

#endif
