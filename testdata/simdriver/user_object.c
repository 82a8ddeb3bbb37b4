/*
 * Objects of the program that end with the last reference, be it its own or a graph's. A thread of the driver ends them: nothing
 * may wait for that (USER_OBJECT_NO_DESTRUCTOR_SYNC, which has to be given).
 */
#include "graph.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#define NO_DESTRUCTOR_SYNC 1u
#define MOVE 1u

struct CUuserObject_st {
	CUhostFn destroy;
	void *ptr;
	uint64_t references;
};

struct kept { /* by a graph */
	struct kept *next;
	CUuserObject object;
	uint64_t count;
};

static void *end(void *argument)
{
	CUuserObject o = argument;

	o->destroy(o->ptr);
	free(o);
	return NULL;
}

/* From here on, where a function takes no lock, the process lock is held. */
static void let_go(CUuserObject o, uint64_t count)
{
	pthread_attr_t detached;
	pthread_t thread;

	o->references -= count;
	if (o->references)
		return;
	object_remove(o);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_create(&thread, &detached, end, o); /* without a thread it never ends */
	pthread_attr_destroy(&detached);
}

static bool keep(struct kept **list, CUuserObject o, uint64_t count)
{
	struct kept *k = *list;

	while (k && k->object != o)
		k = k->next;
	if (!k) {
		k = malloc(sizeof(*k));
		if (!k)
			return false;
		*k = (struct kept){*list, o, 0};
		*list = k;
	}
	k->count += count;
	return true;
}

bool user_objects_keep(struct kept **list, const struct kept *from)
{
	bool done = true;

	for (; done && from; from = from->next) {
		done = keep(list, from->object, from->count);
		if (done)
			from->object->references += from->count;
	}
	return done;
}

void user_objects_let_go(struct kept *list)
{
	for (struct kept *next; list; list = next) {
		next = list->next;
		let_go(list->object, list->count);
		free(list);
	}
}

static bool good(CUuserObject object, unsigned count)
{
	return object_is(OBJECT_USER, object) && count && count <= INT_MAX;
}

CUresult cuUserObjectCreate(CUuserObject *object, void *ptr, CUhostFn destroy, unsigned int count, unsigned int flags)
{
	CUuserObject o;
	bool added;

	ENTER();
	if (!object || !destroy || !count || count > INT_MAX || flags != NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	o = malloc(sizeof(*o));
	if (!o)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*o = (struct CUuserObject_st){destroy, ptr, count};
	process_lock();
	added = object_add(OBJECT_USER, o);
	process_unlock();
	if (!added) {
		free(o);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*object = o;
	return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (good(object, count)) {
		object->references += count;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (good(object, count) && count <= object->references) {
		let_go(object, count);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (object_is(OBJECT_GRAPH, graph) && good(object, count) && !(flags & ~MOVE)) {
		r = keep(&graph->objects, object, count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (!r && !(flags & MOVE)) /* else they were the caller's */
			object->references += count;
	}
	process_unlock();
	return r;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct kept **at;

	ENTER();
	process_lock();
	at = object_is(OBJECT_GRAPH, graph) && count ? &graph->objects : NULL;
	while (at && *at && (*at)->object != object)
		at = &(*at)->next;
	if (at && *at && (*at)->count >= count) {
		struct kept *k = *at;

		k->count -= count;
		if (!k->count) {
			*at = k->next;
			free(k);
		}
		let_go(object, count);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}
