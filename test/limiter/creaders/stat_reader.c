#include "clock.h"
#define clock_sleep_us(us) ((void)(us))

#include "witness.c"

#include "creaders.h"

bool creaders_stat(const char *line, struct creaders_stat *out)
{
	struct stat_line s;
	bool read = parse(line, &s);

	*out = (struct creaders_stat){s.state, s.flags, s.threads, s.start_time, s.pending};
	return read;
}
