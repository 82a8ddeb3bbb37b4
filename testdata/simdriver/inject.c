/* simctl fail and unfail: calls that fail on purpose; simctl missed: calls that failed because nothing answers them. */
#define _GNU_SOURCE
#include "simctl.h"
#include "cuda_api.h"

#include <stdlib.h>
#include <string.h>

static bool known_symbol(const char *name)
{
#define SYM(symbol, base, version, kind) #symbol,
	static const char *const known[] = {
#include "symbols.def"
#include "absent.def"
	};
#undef SYM

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (!strcmp(name, known[i]))
			return true;
	}
	return !strncmp(name, "nvml", 4);
}

static bool parse_error(const char *text, int32_t *error)
{
#define ROW(number, name, text) {number, #name},
	static const struct {
		int number;
		const char *name;
	} rows[] = {CUDA_RESULTS(ROW)};
#undef ROW
	char *end;
	long n = strtol(text, &end, 10);

	if (end != text && !*end && n > 0 && n < 10000) {
		*error = (int32_t)n;
		return true;
	}
	if (!strncmp(text, "CUDA_", 5))
		text += 5;
	if (!strncmp(text, "ERROR_", 6))
		text += 6;
	for (size_t i = 1; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (!strcmp(rows[i].name + strlen("ERROR_"), text)) {
			*error = rows[i].number;
			return true;
		}
	}
	return complain("not an error: %s", text);
}

int fail_symbol(struct view *v, const char *symbol, const char *count_text, const char *error_text)
{
	char *end;
	long long count = strtoll(count_text, &end, 10);
	int32_t error = CUDA_ERROR_OUT_OF_MEMORY;
	struct fail *f = NULL;

	if (!known_symbol(symbol))
		return 2 * !complain("no such function: %s (simctl symbols lists them)", symbol);
	if (end == count_text || *end || count <= 0)
		return 2 * !complain("not a count: %s", count_text);
	if (error_text && !parse_error(error_text, &error))
		return 2;
	if (state_lock(v))
		return !complain("lock the state: failed");
	for (unsigned i = 0; i < MAX_FAILS && !f; i++) {
		if (atomic_load(&v->s->fails[i].left) <= 0)
			f = &v->s->fails[i];
	}
	if (f) {
		memset(f->symbol, 0, sizeof(f->symbol));
		memccpy(f->symbol, symbol, 0, sizeof(f->symbol) - 1);
		f->error = error;
		atomic_store(&f->left, count);
		atomic_store(&v->s->fail_count, 1);
	}
	state_unlock(v);
	return f ? 0 : !complain("more than %u failures at once", MAX_FAILS);
}

int unfail_symbol(struct view *v, const char *symbol)
{
	bool any = false;

	if (state_lock(v))
		return !complain("lock the state: failed");
	for (unsigned i = 0; i < MAX_FAILS; i++) {
		struct fail *f = &v->s->fails[i];

		if (!symbol || !strcmp(f->symbol, symbol))
			atomic_store(&f->left, 0);
		any |= atomic_load(&f->left) > 0;
	}
	atomic_store(&v->s->fail_count, any);
	state_unlock(v);
	return 0;
}

int show_missed(struct view *v, bool json)
{
	struct state *s = v->s;
	uint32_t count = atomic_load(&s->miss_count);
	bool first = true;

	if (json)
		printf("[");
	else
		printf("%-8s %10s %s\n", "PID", "CALLS", "FUNCTION");
	for (uint32_t i = 0; i < count && i < MAX_MISSES; i++) {
		const struct miss *m = &s->misses[i];
		unsigned long long calls = atomic_load(&m->calls);

		if (!calls)
			continue;
		if (json)
			printf("%s{\"pid\":%u,\"symbol\":\"%s\",\"calls\":%llu}", first ? "" : ",", m->pid, m->symbol, calls);
		else
			printf("%-8u %10llu %s\n", m->pid, calls, m->symbol);
		first = false;
	}
	if (json)
		printf("]\n");
	return count <= MAX_MISSES ? 0 : !complain("%u more were not counted", count - MAX_MISSES);
}

int clear_missed(struct view *v)
{
	memset(v->s->misses, 0, sizeof(v->s->misses));
	atomic_store(&v->s->miss_count, 0);
	return 0;
}
