#include "span.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_ROOM = 128 };

static bool grow(struct spans *s)
{
	size_t room = s->room ? 2 * s->room : FIRST_ROOM;
	struct span *at = mmap(NULL, room * sizeof(*at), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return false;
	if (s->count)
		memcpy(at, s->at, s->count * sizeof(*at));
	size_t count = s->count;
	spans_free(s);
	*s = (struct spans){ at, count, room };
	return true;
}

/* The first that ends after an address. */
static size_t first_after(const struct spans *s, uint64_t address)
{
	size_t low = 0, high = s->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (s->at[middle].end > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

bool spans_add(struct spans *s, struct span span)
{
	if (s->count == s->room && !grow(s))
		return false;
	size_t from = first_after(s, span.begin), to = from;

	for (; to < s->count && s->at[to].begin < span.end; to++) {
		span.begin = s->at[to].begin < span.begin ? s->at[to].begin : span.begin;
		span.end = s->at[to].end > span.end ? s->at[to].end : span.end;
	}
	memmove(&s->at[from + 1], &s->at[to], (s->count - to) * sizeof(*s->at));
	s->at[from] = span;
	s->count += 1 + from - to;
	return true;
}

void spans_free(struct spans *s)
{
	if (s->room)
		munmap(s->at, s->room * sizeof(*s->at));
	*s = (struct spans){ 0 };
}
