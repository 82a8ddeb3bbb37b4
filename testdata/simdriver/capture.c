/*
 * Stream capture: what is put into a capturing stream becomes nodes of a graph. A stream joins by waiting for an event
 * that was recorded in a capturing one. Calls that would need the captured work to be done, now, end the capture.
 */
#include "capture.h"

#include "pool.h"
#include "transfer.h"

#include <stdlib.h>

static struct capture *captures; /* process lock */
static atomic_uint capture_count;
static uint64_t last_id;
static _Thread_local char this_thread; /* its address stands for the thread */
static _Thread_local int thread_mode;

static bool is_in(const struct nodes *set, CUgraphNode node)
{
	for (size_t i = 0; i < set->count; i++) {
		if (set->node[i] == node)
			return true;
	}
	return false;
}

static bool has_room(struct nodes **set, size_t room)
{
	struct nodes *bigger;

	if (room <= (*set)->room)
		return true;
	bigger = realloc(*set, sizeof(**set) + room * sizeof((*set)->node[0]));
	if (!bigger)
		return false;
	bigger->room = room;
	*set = bigger;
	return true;
}

CUresult capture_depend(struct nodes **set, const CUgraphNode *node, size_t count)
{
	if (!has_room(set, (*set)->count + count))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < count; i++) {
		if (!is_in(*set, node[i]))
			(*set)->node[(*set)->count++] = node[i];
	}
	return CUDA_SUCCESS;
}

static bool join_capture(CUstream s, struct capture *c)
{
	if (!s->captured)
		s->captured = calloc(1, sizeof(*s->captured));
	if (!s->captured)
		return false;
	s->captured->count = 0;
	s->capture = c;
	return true;
}

CUresult capture_check(CUcontext ctx, CUstream s, bool *captured)
{
	*captured = s && s->capture;
	if (!atomic_load(&capture_count))
		return CUDA_SUCCESS;
	if (*captured)
		return s->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
	for (struct capture *c = captures; c && !s; c = c->next) {
		if (c->origin->ctx != ctx || (c->origin->flags & CU_STREAM_NON_BLOCKING))
			continue;
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return CUDA_SUCCESS;
}

static CUresult added(CUstream s, CUgraphNode node)
{
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->captured->count = 0;
	return capture_depend(&s->captured, &node, 1);
}

CUresult capture_work(CUstream s, int type, struct load load)
{
	CUgraphNode node = graph_add(s->capture->graph, type, s->captured->node, s->captured->count);

	if (node)
		node->load = load;
	return added(s, node);
}

CUresult capture_kernel(CUstream s, const CUDA_KERNEL_NODE_PARAMS *params)
{
	CUgraphNode node = graph_add(s->capture->graph, CU_GRAPH_NODE_KERNEL, s->captured->node, s->captured->count);

	return added(s, node && node_set_kernel(node, params) ? node : NULL);
}

CUresult capture_host_function(CUstream s, CUhostFn function, void *data)
{
	CUgraphNode node = graph_add(s->capture->graph, CU_GRAPH_NODE_HOST, s->captured->node, s->captured->count);

	if (node)
		node->host = (CUDA_HOST_NODE_PARAMS){function, data};
	return added(s, node);
}

CUresult capture_transfer(CUstream s, const struct transfer *t)
{
	CUgraphNode node = graph_add(s->capture->graph, t->element ? CU_GRAPH_NODE_MEMSET : CU_GRAPH_NODE_MEMCPY, s->captured->node,
				     s->captured->count);

	return added(s, node && graph_set_transfer(node, t) ? node : NULL);
}

CUresult graph_capture_alloc(CUstream s, CUdevice dev, size_t bytes, CUdeviceptr *out)
{
	CUgraphNode node = graph_add_alloc(s->capture->graph, dev, bytes, s->captured->node, s->captured->count);

	if (node)
		*out = node->ptr;
	return added(s, node);
}

CUresult graph_capture_free(CUstream s, CUdeviceptr ptr)
{
	CUgraphNode node = graph_add(s->capture->graph, CU_GRAPH_NODE_MEM_FREE, s->captured->node, s->captured->count);

	if (node)
		node->ptr = ptr;
	return added(s, node);
}

CUresult capture_forbids_wait(CUcontext ctx, CUstream handle)
{
	CUresult r = CUDA_SUCCESS;
	CUstream s = NULL;

	if (!atomic_load(&capture_count))
		return CUDA_SUCCESS;
	process_lock();
	if (handle && stream_find(handle, ctx, &s) == CUDA_SUCCESS && s && s->capture) {
		s->capture->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	for (struct capture *c = captures; c && !handle && !r; c = c->next) {
		if (c->origin->ctx == ctx || (ctx->green && c->origin->green == ctx->green)) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	process_unlock();
	return r;
}

static bool forbids(const struct capture *c)
{
	if (c->mode == CU_CAPTURE_MODE_RELAXED || thread_mode == CU_CAPTURE_MODE_RELAXED)
		return false;
	return c->thread == &this_thread || (c->mode == CU_CAPTURE_MODE_GLOBAL && thread_mode == CU_CAPTURE_MODE_GLOBAL);
}

CUresult capture_forbids_unsafe(void)
{
	CUresult r = CUDA_SUCCESS;

	if (!atomic_load(&capture_count))
		return CUDA_SUCCESS;
	process_lock();
	for (struct capture *c = captures; c; c = c->next) {
		if (!forbids(c))
			continue;
		c->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	process_unlock();
	return r;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	int old = thread_mode;

	ENTER();
	if (!mode || *mode < CU_CAPTURE_MODE_GLOBAL || *mode > CU_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

/* Process lock held. */
static struct capture *capture_with(uint64_t id)
{
	struct capture *c = captures;

	while (c && c->id != id)
		c = c->next;
	return c;
}

CUresult capture_record(CUevent event, CUstream s)
{
	if (!event->captured)
		event->captured = calloc(1, sizeof(*event->captured));
	if (!event->captured)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->capture_id = s->capture->id;
	event->pending_record = 0;
	event->captured->count = 0;
	return capture_depend(&event->captured, s->captured->node, s->captured->count);
}

CUresult capture_wait(CUstream s, CUevent event, bool *captured)
{
	struct capture *c = event->capture_id ? capture_with(event->capture_id) : NULL;

	*captured = c || (s && s->capture);
	if (!*captured)
		return CUDA_SUCCESS;
	if (!c) { /* work that is not captured can't be waited for */
		s->capture->invalid = event->recorded;
		return event->recorded ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_SUCCESS;
	}
	if (!s || (s->capture && s->capture != c)) {
		c->invalid = true;
		return s ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (!s->capture && !join_capture(s, c))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (c->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return capture_depend(&s->captured, event->captured->node, event->captured->count);
}

void capture_event_forbidden(CUevent event)
{
	struct capture *c = capture_with(event->capture_id);

	if (c)
		c->invalid = true;
}

static bool bad_dependencies(CUgraph into, const CUgraphNode *deps, size_t count)
{
	bool bad = into && (!object_is(OBJECT_GRAPH, into) || (count && !deps));

	for (size_t i = 0; !bad && i < count; i++)
		bad = !object_is(OBJECT_NODE, deps[i]) || deps[i]->graph != into;
	return bad;
}

CUresult capture_begin(CUstream handle, CUgraph into, const CUgraphNode *deps, size_t count, int mode)
{
	struct capture *c = calloc(1, sizeof(*c));
	CUcontext ctx;
	CUstream s = NULL;
	CUresult r = current_context(&ctx);

	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	process_lock();
	if (!r && (mode < CU_CAPTURE_MODE_GLOBAL || mode > CU_CAPTURE_MODE_RELAXED || bad_dependencies(into, deps, count)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = stream_find(handle, ctx, &s);
	if (!r && !s)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!r && s->capture)
		r = CUDA_ERROR_ILLEGAL_STATE;
	if (!r) {
		*c = (struct capture){.next = captures, .id = ++last_id, .mode = mode, .thread = &this_thread, .origin = s, .borrowed = into};
		c->graph = into ? into : graph_new();
		r = c->graph && join_capture(s, c) ? capture_depend(&s->captured, deps, count) : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!r) {
		captures = c;
		atomic_fetch_add(&capture_count, 1);
	} else if (s && s->capture == c) {
		s->capture = NULL;
	}
	process_unlock();
	if (r)
		free(c);
	return r;
}

/* Whether some other stream of the capture has work that the origin does not wait for; and with `leave` it is out of it. */
static struct capture *asked;
static bool unjoined, leave;

static bool look_at(void *object, CUcontext ctx)
{
	CUstream s = object;

	(void)ctx;
	if (s->capture != asked)
		return false;
	for (size_t i = 0; s != asked->origin && i < s->captured->count; i++) {
		bool seen = s->captured->node[i]->leads;

		for (size_t j = 0; j < asked->origin->captured->count; j++)
			seen |= asked->origin->captured->node[j] == s->captured->node[i];
		unjoined |= !seen;
	}
	if (leave)
		s->capture = NULL;
	return false;
}

/* Process lock held. */
static void drop(struct capture *c)
{
	struct capture **at = &captures;

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	asked = c;
	leave = true;
	object_sweep(OBJECT_STREAM, look_at, NULL);
	c->origin->capture = NULL;
	leave = false;
	atomic_fetch_sub(&capture_count, 1);
	free(c);
}

void captures_drop_stream(CUstream s)
{
	if (s->capture && s->capture->origin == s) {
		CUgraph graph = s->capture->borrowed ? NULL : s->capture->graph;

		drop(s->capture);
		if (graph)
			graph_free(graph);
	}
	free(s->captured);
}

static CUresult end(CUstream handle, CUgraph *graph)
{
	struct capture *c = NULL;
	CUcontext ctx;
	CUstream s = NULL;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r && (!s || !s->capture))
		r = CUDA_ERROR_ILLEGAL_STATE;
	if (!r)
		c = s->capture;
	if (c && c->origin != s) {
		c->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	} else if (c && c->mode != CU_CAPTURE_MODE_RELAXED && c->thread != &this_thread) {
		r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	} else if (c) {
		CUgraph ours = c->borrowed ? NULL : c->graph;

		asked = c;
		unjoined = false;
		object_sweep(OBJECT_STREAM, look_at, NULL);
		r = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
			       : unjoined ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_SUCCESS;
		*graph = r ? NULL : c->graph;
		drop(c); /* which looks at the nodes */
		if (r && ours)
			graph_free(ours);
	}
	process_unlock();
	return r;
}

struct info {
	int *status;
	cuuint64_t *id;
	CUgraph *graph;
	const CUgraphNode **deps;
	const CUgraphEdgeData **edges;
	size_t *count;
};

static CUresult info(CUstream handle, struct info i)
{
	CUcontext ctx;
	CUstream s = NULL;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (!i.status)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	for (struct capture *c = captures; c && !r && !s; c = c->next) {
		if (c->origin->ctx == ctx && !(c->origin->flags & CU_STREAM_NON_BLOCKING))
			r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* and, as documented, that capture goes on */
	}
	if (!r) {
		const struct capture *c = s ? s->capture : NULL;

		*i.status = !c ? CU_CAPTURE_NONE : c->invalid ? CU_CAPTURE_INVALIDATED : CU_CAPTURE_ACTIVE;
		if (c && i.id)
			*i.id = c->id;
		if (c && i.graph)
			*i.graph = c->graph;
		if (c && i.deps)
			*i.deps = s->captured->node;
		if (c && i.edges)
			*i.edges = NULL;
		if (c && i.count)
			*i.count = s->captured->count;
	}
	process_unlock();
	return r;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	ENTER();
	return capture_begin(stream, NULL, NULL, 0, CU_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	ENTER();
	return capture_begin(per_thread(stream), NULL, NULL, 0, CU_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	ENTER();
	return capture_begin(stream, NULL, NULL, 0, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	ENTER();
	return capture_begin(per_thread(stream), NULL, NULL, 0, mode);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	ENTER();
	return end(stream, graph);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	ENTER();
	return end(per_thread(stream), graph);
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	ENTER();
	return info(stream, (struct info){.status = status});
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	ENTER();
	return info(per_thread(stream), (struct info){.status = status});
}

#define INFO_TWIN(name, fields, ...)                                   \
	CUresult name(CUstream stream, __VA_ARGS__)                    \
	{                                                              \
		ENTER();                                               \
		return info(stream, (struct info)fields);              \
	}                                                              \
	CUresult name##_ptsz(CUstream stream, __VA_ARGS__)             \
	{                                                              \
		ENTER();                                               \
		return info(per_thread(stream), (struct info)fields);  \
	}
#define FIELDS(...) {__VA_ARGS__}

INFO_TWIN(cuStreamGetCaptureInfo, FIELDS(.status = status, .id = id), int *status, cuuint64_t *id)
INFO_TWIN(cuStreamGetCaptureInfo_v2, FIELDS(.status = status, .id = id, .graph = graph, .deps = deps, .count = count),
	  int *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps, size_t *count)
INFO_TWIN(cuStreamGetCaptureInfo_v3,
	  FIELDS(.status = status, .id = id, .graph = graph, .deps = deps, .edges = edges, .count = count), int *status,
	  cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *count)
