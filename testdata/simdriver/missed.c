/* Calls of functions that exist by name only, counted per process. The record outlives the process. */
#define _GNU_SOURCE
#include "state.h"

#include <string.h>
#include <unistd.h>

/* Another process, as a forked child is one, gets a row of its own; two threads may get one each. */
void miss(struct view *v, struct miss_row *row, const char *symbol)
{
	uint32_t pid = (uint32_t)getpid();
	struct miss *m;

	if (atomic_load(&row->pid) != pid) {
		uint32_t index = atomic_fetch_add(&v->s->miss_count, 1);

		if (index >= MAX_MISSES)
			return;
		m = &v->s->misses[index];
		memccpy(m->symbol, symbol, 0, sizeof(m->symbol) - 1);
		m->pid = pid;
		atomic_store(&row->index, index);
		atomic_store(&row->pid, pid);
	}
	atomic_fetch_add(&v->s->misses[atomic_load(&row->index)].calls, 1);
}
