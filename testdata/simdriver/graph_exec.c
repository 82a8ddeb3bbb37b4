/* Executable graphs: what they are made of, and launching them. */
#include "graph_exec.h"

#include "pool.h"

#include <stdlib.h>

static CUresult run(CUgraphExec exec, CUcontext ctx, CUstream s, CUstream handle)
{
	CUresult r = stream_run(handle, exec->ns, exec->launches);

	process_lock();
	exec_memory_launched(exec, ctx, s, !r);
	process_unlock();
	for (struct work *w = r ? NULL : exec->work; !r && w; w = w->next)
		r = transfer_run(&w->transfer);
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
		r = upload ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture_work(s, CU_GRAPH_NODE_GRAPH, 0);
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

static bool add_work(CUgraphExec exec, CUgraphNode n)
{
	struct work *w = malloc(sizeof(*w));

	if (!w)
		return false;
	*w = (struct work){.node = n, .transfer = *n->transfer};
	*exec->last = w;
	exec->last = &w->next;
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

/* False: no memory. */
static bool fill(CUgraphExec exec, CUgraph root, CUgraph g)
{
	bool done = true;

	for (CUgraphNode n = g->first; n && done; n = n->next) {
		if (n->child)
			done = fill(exec, root, n->child);
		exec->ns += n->ns;
		exec->launches += n->type == CU_GRAPH_NODE_KERNEL;
		if (n->transfer)
			done = add_work(exec, n);
		if (n->type == CU_GRAPH_NODE_MEM_ALLOC)
			done = add_memory(exec, root, n);
	}
	return done;
}

bool graph_exec_set_transfer(CUgraphExec exec, CUgraphNode node, const struct transfer *t)
{
	struct work *w = exec->work;

	while (w && w->node != node)
		w = w->next;
	if (w)
		w->transfer = *t;
	return w != NULL;
}

static void free_exec(CUgraphExec exec)
{
	for (struct live *k = exec->kept, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	for (struct live *u = exec->uses, *next; u; u = next) {
		next = u->next;
		allocation_unhold(u->ptr);
		free(u);
	}
	for (struct work *w = exec->work, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	free(exec);
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags, CUstream upload)
{
	CUgraphExec exec = calloc(1, sizeof(*exec));
	CUresult r = CUDA_SUCCESS;

	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->last = &exec->work;
	process_lock();
	if (!out || !object_is(OBJECT_GRAPH, graph) || (flags & ~0xfull))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		exec->auto_free = flags & CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH;
		r = object_add(OBJECT_EXEC, exec) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!r && !fill(exec, graph, graph)) {
		object_remove(exec);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r)
		free_exec(exec);
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

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER();
	return params ? instantiate(exec, graph, params->flags, params->hUploadStream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER();
	return params ? instantiate(exec, graph, params->flags, per_thread(params->hUploadStream)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (object_is(OBJECT_EXEC, exec)) {
		object_remove(exec);
		exec_memory_leave(exec);
		free_exec(exec);
	} else {
		r = CUDA_ERROR_INVALID_VALUE;
	}
	process_unlock();
	return r;
}
