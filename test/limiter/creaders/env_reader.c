#include "envlimits.c"

#include "creaders.h"

uint64_t creaders_size(const char *text)
{
	return parse_size(text);
}
