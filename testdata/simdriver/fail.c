/* Injected failures, as a process comes upon them. See `simctl fail`. */
#include "state.h"

#include <string.h>

bool fail_consume(struct view *v, const char *symbol, int *error)
{
	struct state *s = v->s;

	if (!atomic_load_explicit(&s->fail_count, memory_order_relaxed))
		return false;
	for (unsigned i = 0; i < MAX_FAILS; i++) {
		struct fail *f = &s->fails[i];

		if (atomic_load(&f->left) <= 0 || strncmp(f->symbol, symbol, sizeof(f->symbol)) != 0)
			continue;
		if (atomic_fetch_sub(&f->left, 1) > 0) {
			*error = f->error;
			return true;
		}
		atomic_fetch_add(&f->left, 1);
	}
	return false;
}
