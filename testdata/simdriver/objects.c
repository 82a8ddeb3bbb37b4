/*
 * The handles that were given out: an open-addressing hash of pointers. Every caller holds the process lock, except that
 * of object_destroy.
 */
#include "driver.h"

#include <stdlib.h>

struct slot {
	void *object; /* NULL: never used */
	enum object_kind kind; /* 0: was removed */
};

static struct slot *slots;
static size_t slot_count; /* a power of two */
static size_t slots_filled;

static size_t hash(const void *p)
{
	return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 20);
}

static struct slot *probe(const void *object)
{
	for (size_t i = hash(object); slot_count; i++) {
		struct slot *s = &slots[i & (slot_count - 1)];

		if (!s->object || s->object == object)
			return s;
	}
	return NULL;
}

static bool grow(void)
{
	struct slot *old = slots;
	size_t old_count = slot_count;
	size_t live = 0;

	for (size_t i = 0; i < old_count; i++)
		live += old[i].kind != 0;
	slot_count = 64;
	while (slot_count < live * 4)
		slot_count *= 2;
	slots = calloc(slot_count, sizeof(*slots));
	if (!slots) {
		slots = old;
		slot_count = old_count;
		return false;
	}
	slots_filled = live;
	for (size_t i = 0; i < old_count; i++) {
		if (old[i].kind)
			*probe(old[i].object) = old[i];
	}
	free(old);
	return true;
}

bool object_add(enum object_kind kind, void *object)
{
	struct slot *s;

	if ((slots_filled + 1) * 2 > slot_count && !grow())
		return false;
	s = probe(object); /* there is always an empty slot */
	if (!s->object)
		slots_filled++;
	s->object = object;
	s->kind = kind;
	return true;
}

bool object_is(enum object_kind kind, const void *object)
{
	const struct slot *s = object ? probe(object) : NULL;

	return s && s->object && s->kind == kind;
}

void object_remove(const void *object)
{
	struct slot *s = probe(object);

	if (s && s->object)
		s->kind = 0;
}

void object_sweep(enum object_kind kind, bool (*drop)(void *object, CUcontext ctx), CUcontext ctx)
{
	for (size_t i = 0; i < slot_count; i++) {
		if (slots[i].kind == kind && drop(slots[i].object, ctx))
			slots[i].kind = 0;
	}
}

CUresult object_destroy(enum object_kind kind, void *object)
{
	CUresult r = CUDA_SUCCESS;

	process_lock();
	if (object_is(kind, object)) {
		object_remove(object);
		free(object);
	} else {
		r = CUDA_ERROR_INVALID_HANDLE;
	}
	process_unlock();
	return r;
}
