/* Executable graphs: what they are made of, and launching them. */
#include "graph_exec.h"

#include "memop.h"
#include "pool.h"

#include <stdlib.h>

/* What the stream can't do by itself. The kernels before it are in the stream. */
static CUresult run_other(const struct task *s, CUstream handle)
{
	switch (s->type) {
	case CU_GRAPH_NODE_HOST:
		return host_function_put(handle, s->host.fn, s->host.userData);
	case CU_GRAPH_NODE_BATCH_MEM_OP:
		return memops_put(handle, s->memops);
	case CU_GRAPH_NODE_EVENT_RECORD:
		return cuEventRecord(s->event, handle);
	default:
		return cuStreamWaitEvent(handle, s->event, 0);
	}
}

static bool is_other(int type)
{
	return type == CU_GRAPH_NODE_HOST || type == CU_GRAPH_NODE_EVENT_RECORD || type == CU_GRAPH_NODE_WAIT_EVENT ||
	       type == CU_GRAPH_NODE_BATCH_MEM_OP;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool has_kernel(const struct task *t)
{
	return t->type == CU_GRAPH_NODE_KERNEL && !t->off;
}

/* When it is done: it begins when those before it are, and not before that moment, and has what they leave of the GPU. */
static void plan(struct task *t, struct overlap *o, uint64_t begin)
{
	t->begin = t->parent ? later(begin, t->parent->begin) : begin;
	for (size_t i = 0; i < t->after_count; i++)
		t->begin = later(t->begin, t->after[i]->end);
	t->end = has_kernel(t) && t->load.ns ? overlap_put(o, t->begin, t->load.ns, t->load.width) : t->begin;
	for (struct task *p = t->parent; p && p->end < t->end; p = p->parent)
		p->end = t->end;
}

/* Kernels up to the next task that the stream can't do by itself go into it as one, which is as wide as they are on average. */
static CUresult run_kernels(struct task *t, CUstream handle, uint64_t *moment)
{
	struct overlap o = {0};
	uint64_t begin = *moment, end = begin, at = begin;
	struct load load;
	unsigned launches = 0;
	double work = 0;

	process_lock();
	do {
		plan(t, &o, begin);
		end = later(end, t->end);
		launches += has_kernel(t);
		t = t->next;
	} while (t && !is_other(t->type));
	process_unlock();
	for (unsigned i = 0; i < o.count; at = o.stretches[i++].end)
		work += (double)(o.stretches[i].end - at) * o.stretches[i].width;
	overlap_free(&o);
	*moment = end;
	load.ns = end - begin;
	load.width = load.ns ? (unsigned)(work / (double)load.ns + 0.5) : 0;
	return stream_run(handle, load, launches);
}

static CUresult run(CUgraphExec exec, CUcontext ctx, CUstream s, CUstream handle)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t moment = 0;

	for (struct task *t = exec->tasks; !r && t; t = t->next) {
		bool other = is_other(t->type);

		if (other)
			r = run_other(t, handle);
		if (!r && (other || t == exec->tasks))
			r = run_kernels(t, handle, &moment);
		if (!r && (t->type == CU_GRAPH_NODE_MEMCPY || t->type == CU_GRAPH_NODE_MEMSET) && !t->off)
			r = transfer_do(&t->transfer, ctx, s);
	}
	process_lock();
	exec_memory_launched(exec, ctx, s, !r);
	moment = stream_ready(ctx, s);
	if (exec->used.ctx == ctx)
		moment = later(moment, exec->used.tail);
	exec->used = (struct use){ctx, queue_of(ctx), moment};
	process_unlock();
	return r;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool upload)
{
	CUcontext ctx;
	CUstream s;
	bool captured = false;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r && !object_is(OBJECT_EXEC, exec))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		ctx = s ? s->ctx : ctx;
		r = capture_check(ctx, s, &captured);
	}
	if (!r && captured)
		r = upload ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture_work(s, CU_GRAPH_NODE_GRAPH, (struct load){0});
	else if (!r)
		r = upload ? exec_memory_map(exec, s) : exec_memory_prepare(exec, s);
	process_unlock();
	return r || captured || upload ? r : run(exec, ctx, s, handle);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, per_thread(stream), false);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, true);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, per_thread(stream), true);
}

/* How many allocations at that address the graph makes, less those that it frees. */
static long left_in(CUgraph g, CUdeviceptr ptr)
{
	long left = 0;

	for (CUgraphNode n = g->first; n; n = n->next) {
		if (n->child)
			left += left_in(n->child, ptr);
		if (n->ptr == ptr)
			left += (n->type == CU_GRAPH_NODE_MEM_ALLOC) - (n->type == CU_GRAPH_NODE_MEM_FREE);
	}
	return left;
}

static bool knows(const struct live *list, CUdeviceptr ptr)
{
	while (list && list->ptr != ptr)
		list = list->next;
	return list != NULL;
}

static bool remember(struct live **list, CUgraphNode n)
{
	struct live *k = malloc(sizeof(*k));

	if (!k)
		return false;
	*k = (struct live){.next = *list, .ptr = n->ptr, .device = n->device, .bytes = n->bytes};
	*list = k;
	return true;
}

/* Topology is compared by sums over the places of what a node depends on. */
#define PLACE_FACTOR 0x9e3779b97f4a7c15ull

void task_set(struct task *s, CUgraphNode n)
{
	s->load = n->load;
	s->ctx = n->kernel.ctx;
	s->host = n->host;
	s->event = n->event;
	memops_unuse(s->memops);
	s->memops = memops_use(n->memops);
	s->ptr = n->ptr;
	s->bytes = n->bytes;
	if (n->transfer)
		s->transfer = *n->transfer;
}

static bool add_task(CUgraphExec exec, CUgraphNode n, struct task *parent)
{
	struct task *s = calloc(1, sizeof(*s));

	if (!s)
		return false;
	s->after = calloc(n->dep_count + 1, sizeof(*s->after));
	if (!s->after) {
		free(s);
		return false;
	}
	s->parent = parent;
	n->task = s;
	s->id = n->id;
	s->node = n;
	s->type = n->type;
	for (size_t i = 0; i < n->dep_count; i++) {
		s->after[s->after_count++] = n->deps[i]->task;
		s->before += (n->deps[i]->place + 1) * PLACE_FACTOR;
	}
	task_set(s, n);
	*exec->last = s;
	exec->last = &s->next;
	return true;
}

static bool add_memory(CUgraphExec exec, CUgraph root, CUgraphNode n)
{
	if (knows(exec->uses, n->ptr)) /* of the first, which is the largest */
		return true;
	exec->need[n->device] += (n->bytes + GRAPH_PAGE - 1) / GRAPH_PAGE * GRAPH_PAGE;
	if (!remember(&exec->uses, n))
		return false;
	allocation_hold(n->ptr);
	return left_in(root, n->ptr) <= 0 || remember(&exec->kept, n);
}

static bool is_ready(CUgraphNode n, unsigned walk)
{
	for (size_t i = 0; i < n->dep_count; i++) {
		if (n->deps[i]->seen != walk)
			return false;
	}
	return n->seen != walk;
}

static CUresult fill(CUgraphExec exec, CUgraph root, CUgraph g, struct task *parent);

static CUresult fill_node(CUgraphExec exec, CUgraph root, CUgraphNode n, struct task *parent)
{
	if (!add_task(exec, n, parent) || (n->type == CU_GRAPH_NODE_MEM_ALLOC && !add_memory(exec, root, n)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (n->child && !user_objects_keep(&n->task->objects, n->child->objects))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return n->child ? fill(exec, root, n->child, n->task) : CUDA_SUCCESS;
}

/* What nodes depend on comes before them; in a circle there is no such order. */
static CUresult fill(CUgraphExec exec, CUgraph root, CUgraph g, struct task *parent)
{
	unsigned walk = graph_walk();
	size_t done = 0, before;
	CUresult r = CUDA_SUCCESS;

	do {
		before = done;
		for (CUgraphNode n = g->first; n && !r; n = n->next) {
			if (!is_ready(n, walk))
				continue;
			n->seen = walk;
			n->place = done++;
			r = fill_node(exec, root, n, parent);
		}
	} while (!r && done < g->count && done > before);
	return !r && done < g->count ? CUDA_ERROR_INVALID_VALUE : r;
}

CUresult exec_fill(CUgraphExec exec, CUgraph graph)
{
	return user_objects_keep(&exec->objects, graph->objects) ? fill(exec, graph, graph, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
}

struct task *graph_exec_task(CUgraphExec exec, CUgraphNode node)
{
	struct task *s = exec->tasks;

	while (s && s->id != node->id)
		s = s->next;
	return s;
}

void exec_free(CUgraphExec exec)
{
	user_objects_let_go_after(exec->objects, exec->used);
	for (struct live *k = exec->kept, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	for (struct live *u = exec->uses, *next; u; u = next) {
		next = u->next;
		allocation_unhold(u->ptr);
		free(u);
	}
	for (struct task *s = exec->tasks, *next; s; s = next) {
		next = s->next;
		user_objects_let_go_after(s->objects, exec->used);
		memops_unuse(s->memops);
		free(s->after);
		free(s);
	}
	free(exec);
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags, CUstream upload)
{
	CUgraphExec exec = calloc(1, sizeof(*exec));
	CUresult r = CUDA_SUCCESS;

	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->last = &exec->tasks;
	process_lock();
	if (!out || !object_is(OBJECT_GRAPH, graph) || (flags & ~0xfull))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		exec->flags = flags;
		r = object_add(OBJECT_EXEC, exec) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!r) {
		r = exec_fill(exec, graph);
		if (r)
			object_remove(exec);
	}
	if (r)
		exec_free(exec);
	else
		*out = exec;
	process_unlock();
	if (!r && (flags & CU_GRAPH_INSTANTIATE_UPLOAD)) {
		r = launch(exec, upload, true);
		if (r)
			cuGraphExecDestroy(exec);
	}
	return r;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	(void)error, (void)log, (void)size;
	ENTER();
	return instantiate(exec, graph, 0, NULL);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	(void)error, (void)log, (void)size;
	ENTER();
	return instantiate(exec, graph, 0, NULL);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTER();
	return instantiate(exec, graph, flags & ~(unsigned long long)CU_GRAPH_INSTANTIATE_UPLOAD, NULL);
}

static CUresult with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream upload)
{
	CUresult r = instantiate(exec, graph, params->flags, upload);

	params->hErrNode_out = NULL;
	params->result_out = !r ? CU_GRAPH_INSTANTIATE_SUCCESS
				: r == CUDA_ERROR_INVALID_VALUE ? CU_GRAPH_INSTANTIATE_INVALID_STRUCTURE : CU_GRAPH_INSTANTIATE_ERROR;
	return r;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER();
	return params ? with_params(exec, graph, params, params->hUploadStream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER();
	return params ? with_params(exec, graph, params, per_thread(params->hUploadStream)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (flags && object_is(OBJECT_EXEC, exec)) {
		*flags = exec->flags;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (object_is(OBJECT_EXEC, exec)) {
		object_remove(exec);
		exec_memory_leave(exec);
		exec_free(exec);
	} else {
		r = CUDA_ERROR_INVALID_VALUE;
	}
	process_unlock();
	return r;
}
