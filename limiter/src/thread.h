/* A thread of the limiter's own: all signals are blocked in it. */
#ifndef GPUSLICE_THREAD_H
#define GPUSLICE_THREAD_H

#include <stdbool.h>
#include <stddef.h>

/* Starts a detached thread with a stack of that size, or of libc's size where the program's
 * thread-local storage needs more. False: it can't be started. */
bool thread_start(void *(*run)(void *), void *argument, size_t stack);

#endif
