/*
 * Objects of the program that end with the last reference, be it its own or a graph's. A thread of the driver ends them: nothing
 * may wait for that (USER_OBJECT_NO_DESTRUCTOR_SYNC, which has to be given).
 */
#include "graph.h"
#include "pending.h"

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

/* False: there is no thread. */
static bool start(void *(*run)(void *), void *argument)
{
	pthread_attr_t detached;
	pthread_t thread;
	bool done;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	done = !pthread_create(&thread, &detached, run, argument);
	pthread_attr_destroy(&detached);
	return done;
}

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
	o->references -= count;
	if (o->references)
		return;
	object_remove(o);
	if (!start(end, o))
		end(o); /* it may make no calls of CUDA, so the lock is not in its way */
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

struct later {
	struct kept *list;
	struct use last;
};

static void *wait_and_let_go(void *argument)
{
	struct later *l = argument;

	pending_wait_context(l->last.ctx);
	process_lock();
	if (object_is(OBJECT_CONTEXT, l->last.ctx) && l->last.ctx->any_tail > l->last.tail)
		l->last.tail = l->last.ctx->any_tail; /* what was pending is in the queue now */
	process_unlock();
	queue_wait(l->last.queue, l->last.tail);
	process_lock();
	user_objects_let_go(l->list);
	process_unlock();
	free(l);
	return NULL;
}

void user_objects_let_go_after(struct kept *list, struct use last)
{
	struct later *l = list && last.queue ? malloc(sizeof(*l)) : NULL;

	if (l)
		*l = (struct later){list, last};
	if (l && start(wait_and_let_go, l))
		return;
	free(l);
	user_objects_let_go(list);
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
