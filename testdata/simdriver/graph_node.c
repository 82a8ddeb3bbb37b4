/* What nodes are set to: those that launch a kernel, call a function of the host, record an event or wait for one; and memory. */
#include "graph_exec.h"

#include <stdlib.h>
#include <string.h>

/* Of the first version of the parameters, which is the beginning of the second. */
static CUDA_KERNEL_NODE_PARAMS first_version(const CUDA_KERNEL_NODE_PARAMS *p)
{
	CUDA_KERNEL_NODE_PARAMS out = {0};

	memcpy(&out, p, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return out;
}

CUresult node_check_kernel(const CUDA_KERNEL_NODE_PARAMS *p)
{
	return p && object_is(OBJECT_FUNCTION, p->func) && !(p->kernelParams && p->extra) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct load load_of(const CUDA_KERNEL_NODE_PARAMS *p)
{
	return kernel_load(p->func, p->func->module->ctx->device, (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
			   p->kernelParams, p->extra);
}

bool node_set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct load load = load_of(p); /* what p points to may be the node's */
	void **arguments = NULL;

	if (runtime_launch(p->func->module)) /* a node's function is loaded when it is made */
		return false;
	if (p->kernelParams && !function_copy_arguments(p->func, p->kernelParams, &arguments))
		return false;
	free(node->arguments);
	node->arguments = arguments;
	node->kernel = first_version(p);
	node->kernel.kernelParams = arguments;
	node->kernel.extra = NULL; /* the program's, and it may be gone */
	node->kernel.ctx = p->func->module->ctx;
	node->load = load;
	return true;
}

static CUresult get_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out, size_t bytes)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (out && object_is(OBJECT_NODE, node) && node->type == CU_GRAPH_NODE_KERNEL) {
		memcpy(out, &node->kernel, bytes);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return get_kernel(node, params, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return get_kernel(node, params, sizeof(*params));
}

/* exec NULL: of the node itself, for what is instantiated later. Else the node's task in it. */
static CUresult begin_set(CUgraphExec exec, CUgraphNode node, int type, struct task **task)
{
	if (!object_is(OBJECT_NODE, node) || node->type != type)
		return CUDA_ERROR_INVALID_VALUE;
	*task = exec && object_is(OBJECT_EXEC, exec) ? graph_exec_task(exec, node) : NULL;
	return exec && !*task ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult set_kernel(CUgraphExec exec, bool in_exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct task *task = NULL;
	CUresult r = in_exec && !exec ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

	process_lock();
	if (!r)
		r = begin_set(exec, node, CU_GRAPH_NODE_KERNEL, &task);
	if (!r)
		r = node_check_kernel(p);
	if (!r && in_exec && p->func->module->ctx != task->ctx)
		r = CUDA_ERROR_INVALID_VALUE; /* documented: the function's context can't change */
	if (!r && in_exec)
		task->load = load_of(p);
	else if (!r && !node_set_kernel(node, p))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	process_unlock();
	return r;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return set_kernel(NULL, false, node, params);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return set_kernel(NULL, false, node, params);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return set_kernel(exec, true, node, params);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return set_kernel(exec, true, node, params);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *params)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (params && object_is(OBJECT_NODE, node) && node->type == CU_GRAPH_NODE_HOST) {
		*params = node->host;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

static CUresult set_host(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p)
{
	struct task *task;
	CUresult r = p && p->fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (!r)
		r = begin_set(exec, node, CU_GRAPH_NODE_HOST, &task);
	if (!r)
		*(exec ? &task->host : &node->host) = *p;
	process_unlock();
	return r;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params)
{
	ENTER();
	return set_host(NULL, node, params);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params)
{
	ENTER();
	return exec ? set_host(exec, node, params) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_event(CUgraphNode node, int type, CUevent *event)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	process_lock();
	if (event && object_is(OBJECT_NODE, node) && node->type == type) {
		*event = node->event;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

static CUresult set_event(CUgraphExec exec, CUgraphNode node, int type, CUevent event)
{
	struct task *task;
	CUresult r;

	process_lock();
	r = begin_set(exec, node, type, &task);
	if (!r && !object_is(OBJECT_EVENT, event))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*(exec ? &task->event : &node->event) = event;
	process_unlock();
	return r;
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
	ENTER();
	return get_event(node, CU_GRAPH_NODE_EVENT_RECORD, event);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
	ENTER();
	return set_event(NULL, node, CU_GRAPH_NODE_EVENT_RECORD, event);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	ENTER();
	return exec ? set_event(exec, node, CU_GRAPH_NODE_EVENT_RECORD, event) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event)
{
	ENTER();
	return get_event(node, CU_GRAPH_NODE_WAIT_EVENT, event);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
	ENTER();
	return set_event(NULL, node, CU_GRAPH_NODE_WAIT_EVENT, event);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	ENTER();
	return exec ? set_event(exec, node, CU_GRAPH_NODE_WAIT_EVENT, event) : CUDA_ERROR_INVALID_VALUE;
}

static bool can_be_off(int type)
{
	return type == CU_GRAPH_NODE_KERNEL || type == CU_GRAPH_NODE_MEMCPY || type == CU_GRAPH_NODE_MEMSET;
}

/* Documented: of nodes that launch, copy or fill. */
static CUresult enabled(CUgraphExec exec, CUgraphNode node, unsigned *get, const unsigned *set)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct task *task = NULL;

	process_lock();
	if (object_is(OBJECT_EXEC, exec) && object_is(OBJECT_NODE, node) && can_be_off(node->type))
		task = graph_exec_task(exec, node);
	if (task && set)
		task->off = !*set;
	if (task && get)
		*get = !task->off;
	if (task)
		r = CUDA_SUCCESS;
	process_unlock();
	return r;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *is)
{
	ENTER();
	return is ? enabled(exec, node, is, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int is)
{
	ENTER();
	return enabled(exec, node, NULL, &is);
}

static bool is_node(CUgraphNode node, int type)
{
	bool is;

	process_lock();
	is = object_is(OBJECT_NODE, node) && (type < 0 || node->type == type);
	process_unlock();
	return is;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	ENTER();
	if (!type || !is_node(node, -1))
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->type;
	return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	ENTER();
	if (!graph || !is_node(node, CU_GRAPH_NODE_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	if (!node->child) /* a captured launch of an executable graph */
		return CUDA_ERROR_NOT_SUPPORTED;
	*graph = node->child;
	return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	ENTER();
	if (!params || !is_node(node, CU_GRAPH_NODE_MEM_ALLOC))
		return CUDA_ERROR_INVALID_VALUE;
	memset(params, 0, sizeof(*params));
	params->poolProps.allocType = 1;
	params->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, node->device};
	params->bytesize = node->bytes;
	params->dptr = node->ptr;
	return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *ptr)
{
	ENTER();
	if (!ptr || !is_node(node, CU_GRAPH_NODE_MEM_FREE))
		return CUDA_ERROR_INVALID_VALUE;
	*ptr = node->ptr;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	ENTER();
	switch (params ? params->type : -1) {
	case CU_GRAPH_NODE_KERNEL:
		return set_kernel(NULL, false, node, &params->kernel);
	case CU_GRAPH_NODE_MEMCPY:
		return cuGraphMemcpyNodeSetParams(node, &params->copy.params);
	case CU_GRAPH_NODE_MEMSET:
		return cuGraphMemsetNodeSetParams(node, &params->fill);
	case CU_GRAPH_NODE_HOST:
		return set_host(NULL, node, &params->host);
	case CU_GRAPH_NODE_EVENT_RECORD:
	case CU_GRAPH_NODE_WAIT_EVENT:
		return set_event(NULL, node, params->type, params->event);
	case CU_GRAPH_NODE_BATCH_MEM_OP:
		return cuGraphBatchMemOpNodeSetParams(node, &params->memops);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
	ENTER();
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	switch (params ? params->type : -1) {
	case CU_GRAPH_NODE_KERNEL:
		return set_kernel(exec, true, node, &params->kernel);
	case CU_GRAPH_NODE_MEMCPY:
		return cuGraphExecMemcpyNodeSetParams(exec, node, &params->copy.params, params->copy.ctx);
	case CU_GRAPH_NODE_MEMSET:
		return cuGraphExecMemsetNodeSetParams(exec, node, &params->fill, params->fill.ctx);
	case CU_GRAPH_NODE_HOST:
		return set_host(exec, node, &params->host);
	case CU_GRAPH_NODE_EVENT_RECORD:
	case CU_GRAPH_NODE_WAIT_EVENT:
		return set_event(exec, node, params->type, params->event);
	case CU_GRAPH_NODE_BATCH_MEM_OP:
		return cuGraphExecBatchMemOpNodeSetParams(exec, node, &params->memops);
	case CU_GRAPH_NODE_GRAPH:
		return cuGraphExecChildGraphNodeSetParams(exec, node, params->child);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}
