/* Capturing into a graph of the program, and changing what the next captured node depends on. */
#include "capture.h"

#include "memop.h"

#define SET_DEPENDENCIES 1u

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
				     size_t count, int mode)
{
	(void)edges;
	ENTER();
	return graph ? capture_begin(stream, graph, deps, count, mode) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps,
					  const CUgraphEdgeData *edges, size_t count, int mode)
{
	(void)edges;
	ENTER();
	return graph ? capture_begin(per_thread(stream), graph, deps, count, mode) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult update(CUstream handle, const CUgraphNode *deps, size_t count, unsigned flags)
{
	CUcontext ctx;
	CUstream s = NULL;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if ((flags & ~SET_DEPENDENCIES) || (count && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r && (!s || !s->capture))
		r = CUDA_ERROR_ILLEGAL_STATE;
	if (!r && s->capture->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (size_t i = 0; !r && i < count; i++) {
		if (!object_is(OBJECT_NODE, deps[i]) || deps[i]->graph != s->capture->graph)
			r = CUDA_ERROR_INVALID_VALUE;
	}
	if (!r && (flags & SET_DEPENDENCIES))
		s->captured->count = 0;
	if (!r)
		r = capture_depend(&s->captured, deps, count);
	process_unlock();
	return r;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *deps, size_t count, unsigned int flags)
{
	ENTER();
	return update(stream, deps, count, flags);
}

CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *deps, size_t count, unsigned int flags)
{
	ENTER();
	return update(per_thread(stream), deps, count, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *deps, const CUgraphEdgeData *edges, size_t count,
					      unsigned int flags)
{
	(void)edges;
	ENTER();
	return update(stream, deps, count, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *deps, const CUgraphEdgeData *edges,
						   size_t count, unsigned int flags)
{
	(void)edges;
	ENTER();
	return update(per_thread(stream), deps, count, flags);
}

CUresult capture_memops(CUstream s, struct memops *m)
{
	CUgraphNode node = graph_add(s->capture->graph, CU_GRAPH_NODE_BATCH_MEM_OP, s->captured->node, s->captured->count);

	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->memops = memops_use(m);
	s->captured->count = 0;
	return capture_depend(&s->captured, &node, 1);
}
