/* Kernels that run at the same time: blocks of a kernel go where those of earlier ones leave room, as on a real GPU. */
#include "overlap.h"

#include "state.h"

#include <stdlib.h>
#include <string.h>

#define MOST 8192u /* stretches; what comes then waits for all before it */

static bool has_room(struct overlap *o, unsigned more)
{
	unsigned room = o->room ? o->room * 2 : 64;
	struct stretch *bigger;

	if (o->count + more <= o->room)
		return true;
	bigger = o->count + more <= MOST ? realloc(o->stretches, room * sizeof(*bigger)) : NULL;
	if (!bigger)
		return false;
	o->stretches = bigger;
	o->room = room;
	return true;
}

/* The first that ends later. */
static unsigned find(const struct overlap *o, uint64_t moment)
{
	unsigned low = 0, high = o->count;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (o->stretches[middle].end > moment)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* There is room. */
static void cut(struct overlap *o, unsigned i, uint64_t moment)
{
	memmove(&o->stretches[i + 1], &o->stretches[i], (o->count++ - i) * sizeof(*o->stretches));
	o->stretches[i].end = moment;
}

static void append(struct overlap *o, uint64_t end, unsigned width)
{
	if (o->count && o->stretches[o->count - 1].width == width)
		o->stretches[o->count - 1].end = end;
	else
		o->stretches[o->count++] = (struct stretch){end, width};
}

/* Makes one of neighbours that are equally full, from the one before first to the one after last. */
static void join(struct overlap *o, unsigned first, unsigned last)
{
	unsigned to = first ? first - 1 : 0;

	for (unsigned i = to + 1; i <= last + 1 && i < o->count; i++) {
		if (o->stretches[i].width != o->stretches[to].width)
			to++;
		o->stretches[to] = o->stretches[i];
	}
	last = last + 1 < o->count ? last + 1 : o->count - 1;
	memmove(&o->stretches[to + 1], &o->stretches[last + 1], (o->count - last - 1) * sizeof(*o->stretches));
	o->count -= last - to;
}

uint64_t overlap_put(struct overlap *o, uint64_t from, uint64_t ns, unsigned width)
{
	uint64_t left = ns * width; /* to do */
	unsigned first = find(o, from), i = first;

	if (!has_room(o, 3)) {
		if (!o->count)
			return from + ns;
		return o->stretches[o->count - 1].end += ns;
	}
	if (i == o->count || !width) {
		if (i == o->count || from + ns > o->stretches[o->count - 1].end)
			append(o, from + ns, width);
		return from + ns;
	}
	if (!i || o->stretches[i - 1].end < from)
		cut(o, i++, from);
	for (; i < o->count; from = o->stretches[i++].end) {
		unsigned free = FULL_WIDTH - o->stretches[i].width;
		unsigned mine = free < width ? free : width;
		uint64_t span = o->stretches[i].end - from;

		if (!mine)
			continue;
		if (span >= (left + mine - 1) / mine) {
			from += (left + mine - 1) / mine;
			left = 0;
			if (from < o->stretches[i].end)
				cut(o, i, from);
			o->stretches[i].width += mine;
			break;
		}
		left -= span * mine;
		o->stretches[i].width += mine;
	}
	if (left) {
		from += (left + width - 1) / width;
		append(o, from, width);
		i = o->count - 1;
	}
	join(o, first, i);
	return from;
}

void overlap_forget(struct overlap *o, uint64_t until)
{
	unsigned n = find(o, until);

	if (!n)
		return;
	o->count -= n;
	memmove(o->stretches, &o->stretches[n], o->count * sizeof(*o->stretches));
}

void overlap_free(struct overlap *o)
{
	free(o->stretches);
	*o = (struct overlap){0};
}
