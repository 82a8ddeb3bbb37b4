/* The other files that the readers need, and stubs for what calls the driver. */
#include "crc32.c"
#include "filelock.c"
#include "filepages.c"
#include "paths.c"

#include <stdarg.h>
#include <stdio.h>

#include "hooks.h"
#include "log.h"

bool hook_exists(enum hook_id id)
{
	return id >= 0;
}

void log_line(_Atomic unsigned *once, const char *format, ...)
{
	char line[512];
	va_list args;

	(void)once; /* formats each time, because the line contains the input's text */
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
}
