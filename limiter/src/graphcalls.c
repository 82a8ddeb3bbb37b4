/* Instantiating graphs, and uploading them; launches are in launch.c. */
#include "graph.h"
#include "hooks.h"

/* After the driver's call: records the graph. If it can't be recorded, destroys it. */
static CUresult made(CUresult result, CUgraphExec *exec, const struct graph_need *need, bool uploaded)
{
	if (result != CUDA_SUCCESS || !need->any || graph_made(*exec, need, uploaded))
		return result;
	cuGraphExecDestroy(*exec);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	struct graph_need need;
	CUresult result = graph_needs(graph, &need);

	return result != CUDA_SUCCESS ? result : made(REAL(cuGraphInstantiate)(exec, graph, error, log, size), exec, &need, false);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	struct graph_need need;
	CUresult result = graph_needs(graph, &need);

	return result != CUDA_SUCCESS ? result : made(REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size), exec, &need, false);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	struct graph_need need;
	CUresult result = graph_needs(graph, &need);

	return result != CUDA_SUCCESS ? result : made(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, &need, false);
}

typedef CUresult with_params(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);

/* With the upload flag the instantiation also uploads the graph, which takes its memory. */
static CUresult instantiate(with_params *real, CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                            CUstream stream)
{
	struct graph_need need;
	struct graph_call call = { .taking = 0 };
	CUresult result = graph_needs(graph, &need);
	bool uploads = result == CUDA_SUCCESS && need.any && params && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);

	if (uploads)
		result = graph_begin_upload(&call, &need, stream);
	if (result != CUDA_SUCCESS)
		return result;
	result = real(exec, graph, params);
	if (uploads && graph_end(&call, result) != CUDA_SUCCESS)
		graph_upload_failed(&call, &need);
	return made(result, exec, &need, uploads);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return instantiate(REAL(cuGraphInstantiateWithParams), exec, graph, params, params ? params->hUploadStream : NULL);
}

static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return instantiate(REAL(cuGraphInstantiateWithParams_ptsz), exec, graph, params,
	                   per_thread(params ? params->hUploadStream : NULL));
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	struct graph_call call;
	CUresult result = graph_begin(&call, exec, stream);

	return result != CUDA_SUCCESS ? result : graph_end(&call, REAL(cuGraphUpload)(exec, stream));
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	struct graph_call call;
	CUresult result = graph_begin(&call, exec, per_thread(stream));

	return result != CUDA_SUCCESS ? result : graph_end(&call, REAL(cuGraphUpload_ptsz)(exec, stream));
}
