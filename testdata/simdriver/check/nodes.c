/* What is known of graphs and their nodes, and changing them. */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const char ptx[] = ".version 7.0\n.target sm_75\n"
			  "// sim-duration-us: 1000\n"
			  ".visible .entry add(.param .u64 .ptr .global .align 16 out, .param .f32 by,\n"
			  "\t.param .align 8 .b8 rest[24], .param .u8 flag)\n{ ret; }\n"
			  ".visible .entry nothing() { ret; }\n";

static CUfunction find(const char *name)
{
	CUmodule module;
	CUfunction f;

	FINE(cuModuleLoadData(&module, ptx));
	FINE(cuModuleGetFunction(&f, module, name));
	return f;
}

static CUgraphNode empty(CUgraph g, const CUgraphNode *deps, size_t count)
{
	CUgraphNode node;

	FINE(cuGraphAddEmptyNode(&node, g, deps, count));
	return node;
}

void check_parameters(void)
{
	static const size_t offsets[] = {0, 8, 16, 40}, sizes[] = {8, 4, 24, 1};
	CUfunction f;
	size_t offset, bytes;

	start();
	f = find("add");
	for (size_t i = 0; i < 4; i++) {
		FINE(cuFuncGetParamInfo(f, i, &offset, &bytes));
		CHECK(offset == offsets[i] && bytes == sizes[i]);
	}
	GIVES(cuFuncGetParamInfo(f, 4, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuFuncGetParamInfo(find("nothing"), 0, &offset, NULL), CUDA_ERROR_INVALID_VALUE);
}

void check_graph_edges(void)
{
	CUgraph g, clone;
	CUgraphNode a, b, c, d, many[40], from[8], to[8], got[8], copy;
	CUgraphEdgeData edges[8];
	CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
	CUgraphExec exec;
	size_t count;

	start();
	FINE(cuGraphCreate(&g, 0));
	a = empty(g, NULL, 0);
	b = empty(g, &a, 1);
	c = empty(g, &a, 1);
	d = empty(g, (CUgraphNode[]){b, c}, 2);
	FINE(cuGraphGetEdges(g, NULL, NULL, &count));
	CHECK(count == 4);
	count = 8;
	memset(edges, 1, sizeof(edges));
	FINE(cuGraphGetEdges_v2(g, from, to, edges, &count));
	CHECK(count == 4 && from[0] == a && to[0] == b && from[3] == c && to[3] == d && !from[4] && !to[7] && !edges[3].type);
	GIVES(cuGraphGetEdges(g, from, NULL, &count), CUDA_ERROR_INVALID_VALUE);
	count = 1;
	FINE(cuGraphGetRootNodes(g, got, &count));
	CHECK(count == 1 && got[0] == a);
	count = 1;
	FINE(cuGraphNodeGetDependencies(d, got, &count));
	CHECK(count == 1 && got[0] == b);
	FINE(cuGraphNodeGetDependencies(d, NULL, &count));
	CHECK(count == 2);
	count = 3;
	FINE(cuGraphNodeGetDependentNodes(a, got, &count));
	CHECK(count == 2 && got[0] == b && got[1] == c && !got[2]);
	GIVES(cuGraphNodeGetDependentNodes(a, got, NULL), CUDA_ERROR_INVALID_VALUE);

	FINE(cuGraphClone(&clone, g));
	FINE(cuGraphNodeFindInClone(&copy, d, clone));
	CHECK(copy != d);
	FINE(cuGraphNodeGetDependencies(copy, NULL, &count));
	CHECK(count == 2);
	FINE(cuGraphDestroy(clone));
	GIVES(cuGraphNodeFindInClone(&copy, d, clone), CUDA_ERROR_INVALID_VALUE);

	GIVES(cuGraphAddDependencies(g, &b, &d, 1), CUDA_ERROR_INVALID_VALUE); /* there already */
	GIVES(cuGraphRemoveDependencies(g, &a, &d, 1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphAddDependencies(g, &d, &a, 1)); /* a circle */
	GIVES(cuGraphInstantiateWithFlags(&exec, g, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuGraphInstantiateWithParams(&exec, g, &how), CUDA_ERROR_INVALID_VALUE);
	CHECK(how.result_out == CU_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
	FINE(cuGraphRemoveDependencies(g, &d, &a, 1));
	FINE(cuGraphInstantiateWithParams(&exec, g, &how));
	CHECK(how.result_out == CU_GRAPH_INSTANTIATE_SUCCESS);
	FINE(cuGraphDestroyNode(c));
	GIVES(cuGraphDestroyNode(c), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphGetEdges(g, NULL, NULL, &count));
	CHECK(count == 2);
	FINE(cuGraphDestroyNode(d)); /* the last */
	for (size_t i = 0; i < 40; i++)
		many[i] = empty(g, NULL, 0);
	FINE(cuGraphNodeGetDependencies(empty(g, many, 40), NULL, &count));
	CHECK(count == 40);
	FINE(cuGraphDestroy(g));
	GIVES(cuGraphGetRootNodes(g, NULL, &count), CUDA_ERROR_INVALID_VALUE);
}

void check_kernel_nodes(void)
{
	cuuint64_t out = 0x1234, flags = 9;
	float by = 2;
	char rest[24] = "rest", flag = 7;
	void *arguments[] = {&out, &by, rest, &flag};
	CUDA_KERNEL_NODE_PARAMS p, got;
	CUkernelNodeAttrValue set;
	unsigned enabled;
	float ms;
	CUcontext ctx = start();
	CUgraphExec exec, other;
	CUgraphExecUpdateResultInfo info;
	CUevent before, after;
	CUgraph g, captured;
	CUgraphNode node, nodes[2];
	CUstream s;
	size_t count = 2;

	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	FINE(cuEventCreate(&before, 0));
	FINE(cuEventCreate(&after, 0));
	p = (CUDA_KERNEL_NODE_PARAMS){find("add"), 2, 1, 1, 32, 1, 1, 16, arguments, NULL, NULL, NULL};
	FINE(cuGraphCreate(&g, 0));
	FINE(cuGraphAddKernelNode_v2(&node, g, NULL, 0, &p));
	out = 0; /* values were copied */
	FINE(cuGraphKernelNodeGetParams_v2(node, &got));
	CHECK(got.func == p.func && got.gridDimX == 2 && got.blockDimX == 32 && got.sharedMemBytes == 16 && got.ctx == ctx);
	CHECK(*(cuuint64_t *)got.kernelParams[0] == 0x1234 && *(float *)got.kernelParams[1] == 2);
	CHECK(!strcmp(got.kernelParams[2], "rest") && *(char *)got.kernelParams[3] == 7);
	got.gridDimX = 3;
	FINE(cuGraphKernelNodeSetParams_v2(node, &got)); /* with its own values */
	FINE(cuGraphKernelNodeGetParams_v2(node, &got));
	CHECK(got.gridDimX == 3 && *(cuuint64_t *)got.kernelParams[0] == 0x1234);
	FINE(cuGraphKernelNodeGetAttribute(node, 8, &set));
	CHECK(set.priority == 0);
	set.priority = -3;
	FINE(cuGraphKernelNodeSetAttribute(node, 8, &set));
	FINE(cuGraphClone(&captured, g));
	FINE(cuGraphNodeFindInClone(nodes, node, captured));
	set.priority = 0;
	FINE(cuGraphKernelNodeGetAttribute(nodes[0], 8, &set));
	CHECK(set.priority == -3);
	GIVES(cuGraphKernelNodeSetAttribute(node, 3, &set), CUDA_ERROR_INVALID_VALUE); /* of streams only */
	FINE(cuGraphKernelNodeCopyAttributes(node, nodes[0]));
	FINE(cuGraphDestroy(captured));
	FINE(cuGraphInstantiateWithFlags(&exec, g, 0));
	FINE(cuGraphExecGetFlags(exec, &flags));
	CHECK(flags == 0);

	FINE(cuGraphNodeSetEnabled(exec, node, 0));
	FINE(cuGraphNodeGetEnabled(exec, node, &enabled));
	CHECK(!enabled);
	FINE(cuGraphLaunch(exec, s));
	FINE(cuStreamQuery(s));
	FINE(cuGraphNodeSetEnabled(exec, node, 1));
	FINE(cuEventRecord(before, s));
	FINE(cuGraphLaunch(exec, s));
	FINE(cuEventRecord(after, s));
	FINE(cuEventSynchronize(after));
	FINE(cuEventElapsedTime(&ms, before, after));
	CHECK(ms >= 0.9f);
	p.func = NULL;
	GIVES(cuGraphExecKernelNodeSetParams_v2(exec, node, &p), CUDA_ERROR_INVALID_VALUE);
	p = (CUDA_KERNEL_NODE_PARAMS){find("nothing"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL};
	FINE(cuGraphExecKernelNodeSetParams_v2(exec, node, &p));

	FINE(cuStreamBeginCapture_v2(s, CU_CAPTURE_MODE_RELAXED));
	FINE(cuLaunchKernel(p.func, 5, 1, 1, 64, 1, 1, 8, s, NULL, NULL));
	FINE(cuStreamEndCapture(s, &captured));
	FINE(cuGraphGetNodes(captured, nodes, &count));
	CHECK(count == 1 && !nodes[1]);
	FINE(cuGraphKernelNodeGetParams(nodes[0], &got));
	CHECK(got.func == p.func && got.gridDimX == 5 && got.blockDimX == 64 && got.sharedMemBytes == 8);
	FINE(cuGraphExecUpdate_v2(exec, captured, &info));
	CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
	node = empty(captured, NULL, 0);
	GIVES(cuGraphExecUpdate_v2(exec, captured, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == node);
	FINE(cuGraphInstantiateWithFlags(&other, captured, 0));
	GIVES(cuGraphNodeSetEnabled(other, node, 0), CUDA_ERROR_INVALID_VALUE); /* it does nothing */
	FINE(cuGraphDestroyNode(nodes[0]));
	GIVES(cuGraphExecUpdate_v2(exec, captured, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && info.errorNode == node);
}

static _Atomic int order;
static CUevent expected;

static void first(void *data)
{
	CHECK(atomic_exchange(&order, *(int *)data) == 0);
}

static void second(void *data)
{
	CHECK(atomic_exchange(&order, *(int *)data) == 1);
}

void check_host_nodes(void)
{
	int one = 1, two = 2, three = 3;
	CUDA_HOST_NODE_PARAMS host = {first, &one}, got;
	CUDA_KERNEL_NODE_PARAMS kernel;
	CUgraphNode a, k, b, e;
	CUgraphExec exec;
	CUevent event, found;
	CUgraph g, captured;
	CUstream s;
	size_t count;
	int type;

	start();
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	FINE(cuEventCreate(&event, 0));
	FINE(cuEventCreate(&expected, 0));
	kernel = (CUDA_KERNEL_NODE_PARAMS){find("nothing"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL};
	FINE(cuGraphCreate(&g, 0));
	FINE(cuGraphAddHostNode(&a, g, NULL, 0, &host));
	FINE(cuGraphAddKernelNode_v2(&k, g, &a, 1, &kernel));
	host = (CUDA_HOST_NODE_PARAMS){second, &two};
	FINE(cuGraphAddHostNode(&b, g, &k, 1, &host));
	FINE(cuGraphAddEventRecordNode(&e, g, &b, 1, event));
	FINE(cuGraphHostNodeGetParams(b, &got));
	CHECK(got.fn == second && got.userData == &two);
	GIVES(cuGraphHostNodeGetParams(k, &got), CUDA_ERROR_INVALID_VALUE);
	host.fn = NULL;
	GIVES(cuGraphHostNodeSetParams(b, &host), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphEventRecordNodeGetEvent(e, &found));
	CHECK(found == event);
	GIVES(cuGraphEventWaitNodeGetEvent(e, &found), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphInstantiateWithFlags(&exec, g, 0));
	FINE(cuGraphLaunch(exec, s));
	FINE(cuEventSynchronize(event));
	CHECK(atomic_load(&order) == 2);
	atomic_store(&order, 0);
	host = (CUDA_HOST_NODE_PARAMS){second, &three};
	FINE(cuGraphExecHostNodeSetParams(exec, b, &host));
	FINE(cuGraphExecEventRecordNodeSetEvent(exec, e, expected));
	FINE(cuGraphLaunch(exec, s));
	FINE(cuEventSynchronize(expected));
	CHECK(atomic_load(&order) == 3);

	FINE(cuStreamBeginCapture_v2(s, CU_CAPTURE_MODE_RELAXED));
	FINE(cuLaunchHostFunc(s, second, &one)); /* is not called */
	FINE(cuStreamEndCapture(s, &captured));
	FINE(cuGraphGetNodes(captured, NULL, &count));
	CHECK(count == 1);
	count = 1;
	FINE(cuGraphGetNodes(captured, &a, &count));
	FINE(cuGraphNodeGetType(a, &type));
	CHECK(type == CU_GRAPH_NODE_HOST);
}

void check_graph_dot(void)
{
	char path[] = "/tmp/simgraph.XXXXXX", text[4096];
	CUDA_KERNEL_NODE_PARAMS kernel;
	CUgraphNode node;
	CUgraph g;
	FILE *in;
	size_t n;
	int fd = mkstemp(path);

	CHECK(fd >= 0);
	close(fd);
	start();
	kernel = (CUDA_KERNEL_NODE_PARAMS){find("nothing"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL};
	FINE(cuGraphCreate(&g, 0));
	FINE(cuGraphAddKernelNode_v2(&node, g, NULL, 0, &kernel));
	empty(g, &node, 1);
	FINE(cuGraphDebugDotPrint(g, path, 0));
	in = fopen(path, "r");
	unlink(path);
	CHECK(in);
	n = fread(text, 1, sizeof(text) - 1, in);
	fclose(in);
	text[n] = 0;
	CHECK(!strncmp(text, "digraph", 7) && strstr(text, "KERNEL\\nnothing") && strstr(text, "->"));
	GIVES(cuGraphDebugDotPrint(g, "/nowhere/graph", 0), CUDA_ERROR_OPERATING_SYSTEM);
	GIVES(cuGraphDebugDotPrint(NULL, path, 0), CUDA_ERROR_INVALID_VALUE);
}

static void ended(void *data)
{
	atomic_fetch_add((_Atomic int *)data, 1);
}

/* Any node by one call, and the nodes of a graph in it. */
void check_node_parameters(void)
{
	int one = 1, three = 3;
	CUgraphNodeParams p = {.type = CU_GRAPH_NODE_HOST, .host = {first, &one}};
	CUDA_HOST_NODE_PARAMS host = {first, &one}, got;
	CUgraphNode in, node, plain, other;
	CUgraph inner, g, replaced;
	CUgraphExec exec;
	CUstream s;

	start();
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	FINE(cuGraphCreate(&inner, 0));
	FINE(cuGraphAddHostNode(&in, inner, NULL, 0, &host));
	FINE(cuGraphCreate(&g, 0));
	FINE(cuGraphAddChildGraphNode(&node, g, NULL, 0, inner));
	FINE(cuGraphAddNode(&plain, g, &node, 1, &p));
	p.host.fn = second;
	p.host.userData = &three;
	FINE(cuGraphNodeSetParams(plain, &p));
	FINE(cuGraphHostNodeGetParams(plain, &got));
	CHECK(got.fn == second && got.userData == &three);
	p.type = CU_GRAPH_NODE_KERNEL;
	GIVES(cuGraphNodeSetParams(plain, &p), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphInstantiateWithFlags(&exec, g, 0));
	atomic_store(&order, 0);
	FINE(cuGraphLaunch(exec, s));
	FINE(cuStreamSynchronize(s));
	CHECK(atomic_load(&order) == 3);

	FINE(cuGraphCreate(&replaced, 0));
	host = (CUDA_HOST_NODE_PARAMS){second, &three};
	FINE(cuGraphAddHostNode(&other, replaced, NULL, 0, &host));
	FINE(cuGraphExecChildGraphNodeSetParams(exec, node, replaced));
	p = (CUgraphNodeParams){.type = CU_GRAPH_NODE_HOST, .host = {first, &one}};
	FINE(cuGraphExecNodeSetParams(exec, plain, &p));
	atomic_store(&order, 1);
	p.host.fn = NULL;
	GIVES(cuGraphExecNodeSetParams(exec, plain, &p), CUDA_ERROR_INVALID_VALUE);
	p.host = (CUDA_HOST_NODE_PARAMS){ended, &order};
	FINE(cuGraphExecNodeSetParams(exec, plain, &p));
	FINE(cuGraphLaunch(exec, s));
	FINE(cuStreamSynchronize(s));
	CHECK(atomic_load(&order) == 4);
	empty(replaced, NULL, 0);
	GIVES(cuGraphExecChildGraphNodeSetParams(exec, node, replaced), CUDA_ERROR_INVALID_VALUE);
}

void check_capture_graph(void)
{
	CUgraphNode root, loose, nodes[4], deps[4], many[20];
	CUgraph g, ended_graph, other, child;
	CUgraphExec exec;
	CUstream s;
	CUfunction f;
	size_t count = 4;

	start();
	f = find("nothing");
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	GIVES(cuStreamUpdateCaptureDependencies(s, NULL, 0, 1), CUDA_ERROR_ILLEGAL_STATE);
	FINE(cuGraphCreate(&g, 0));
	FINE(cuGraphCreate(&other, 0));
	root = empty(g, NULL, 0);
	loose = empty(other, NULL, 0);
	GIVES(cuStreamBeginCaptureToGraph(s, NULL, NULL, NULL, 0, CU_CAPTURE_MODE_RELAXED), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuStreamBeginCaptureToGraph(s, g, &loose, NULL, 1, CU_CAPTURE_MODE_RELAXED), CUDA_ERROR_INVALID_VALUE);
	FINE(cuStreamBeginCaptureToGraph(s, g, &root, NULL, 1, CU_CAPTURE_MODE_RELAXED));
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
	GIVES(cuStreamUpdateCaptureDependencies(s, &loose, 1, 0), CUDA_ERROR_INVALID_VALUE);
	FINE(cuStreamUpdateCaptureDependencies(s, &root, 1, 0)); /* as well */
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
	FINE(cuStreamUpdateCaptureDependencies_v2(s, NULL, NULL, 0, 1)); /* on nothing */
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
	FINE(cuStreamUpdateCaptureDependencies(s, NULL, 0, 1));
	FINE(cuGraphGetNodes(g, nodes, &count));
	CHECK(count == 4 && nodes[0] == root);
	FINE(cuStreamUpdateCaptureDependencies(s, nodes + 2, 2, 1));
	FINE(cuStreamEndCapture(s, &ended_graph));
	CHECK(ended_graph == g);
	count = 4;
	FINE(cuGraphNodeGetDependencies(nodes[1], deps, &count));
	CHECK(count == 1 && deps[0] == root);
	count = 4;
	FINE(cuGraphNodeGetDependencies(nodes[2], deps, &count));
	CHECK(count == 2 && deps[0] == nodes[1] && deps[1] == root);
	FINE(cuGraphNodeGetDependencies(nodes[3], NULL, &count));
	CHECK(count == 0);

	FINE(cuStreamBeginCaptureToGraph(s, other, NULL, NULL, 0, CU_CAPTURE_MODE_RELAXED));
	GIVES(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	GIVES(cuStreamEndCapture(s, &ended_graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	FINE(cuGraphDestroy(other)); /* is the program's still */

	FINE(cuGraphCreate(&other, 0));
	for (int i = 0; i < 20; i++)
		many[i] = empty(other, NULL, 0);
	FINE(cuStreamBeginCaptureToGraph(s, other, many, NULL, 20, CU_CAPTURE_MODE_RELAXED));
	FINE(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
	FINE(cuStreamEndCapture(s, &ended_graph));
	FINE(cuGraphGetEdges(other, NULL, NULL, &count));
	CHECK(count == 20);

	FINE(cuGraphInstantiateWithFlags(&exec, g, 0));
	FINE(cuStreamBeginCapture_v2(s, CU_CAPTURE_MODE_RELAXED));
	FINE(cuGraphLaunch(exec, s));
	FINE(cuStreamEndCapture(s, &ended_graph));
	count = 1;
	FINE(cuGraphGetNodes(ended_graph, nodes, &count));
	GIVES(cuGraphChildGraphNodeGetGraph(nodes[0], &child), CUDA_ERROR_NOT_SUPPORTED);
}
