#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void log_line(_Atomic unsigned *once, const char *format, ...)
{
	char line[512] = "gpuslice: ";
	size_t used = strlen(line);
	int saved = errno;
	va_list args;

	/* Relaxed: the flag protects no other data. */
	if (atomic_exchange_explicit(once, 1, memory_order_relaxed))
		return;
	va_start(args, format);
	int n = vsnprintf(line + used, sizeof(line) - used - 1, format, args);
	va_end(args);
	if (n > 0)
		used += (size_t)n < sizeof(line) - used - 1 ? (size_t)n : sizeof(line) - used - 2;
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, used) < 0) {
		/* stderr is closed: the call continues without the message. */
	}
	errno = saved;
}
