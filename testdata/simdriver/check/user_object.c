/* User objects: when they end. */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <unistd.h>

static void ended(void *data)
{
	atomic_fetch_add((_Atomic int *)data, 1);
}

static void wait_for_end(_Atomic int *ends, int number)
{
	while (atomic_load(ends) < number)
		usleep(1000);
	CHECK(atomic_load(ends) == number);
}

void check_user_objects(void)
{
	static _Atomic int ends;
	CUuserObject object, other;
	CUgraphExec exec;
	CUgraph g, clone;

	start();
	GIVES(cuUserObjectCreate(&object, &ends, ended, 1, 0), CUDA_ERROR_INVALID_VALUE); /* the flag is required */
	FINE(cuUserObjectCreate(&object, &ends, ended, 1, 1));
	FINE(cuUserObjectRetain(object, 2));
	FINE(cuUserObjectRelease(object, 2));
	GIVES(cuUserObjectRelease(object, 2), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphCreate(&g, 0));
	FINE(cuGraphRetainUserObject(g, object, 1, 1)); /* moves */
	FINE(cuGraphInstantiateWithFlags(&exec, g, 0));
	FINE(cuGraphClone(&clone, g));
	FINE(cuGraphDestroy(g));
	FINE(cuGraphDestroy(clone));
	CHECK(atomic_load(&ends) == 0);
	FINE(cuUserObjectCreate(&other, &ends, ended, 1, 1));
	FINE(cuUserObjectRelease(other, 1));
	wait_for_end(&ends, 1);
	FINE(cuGraphExecDestroy(exec));
	wait_for_end(&ends, 2);
	GIVES(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphCreate(&g, 0));
	FINE(cuUserObjectCreate(&object, &ends, ended, 1, 1));
	FINE(cuGraphRetainUserObject(g, object, 2, 0));
	GIVES(cuGraphReleaseUserObject(g, object, 3), CUDA_ERROR_INVALID_VALUE);
	FINE(cuGraphReleaseUserObject(g, object, 2));
	GIVES(cuGraphReleaseUserObject(g, object, 1), CUDA_ERROR_INVALID_VALUE);
	FINE(cuUserObjectRelease(object, 1));
	wait_for_end(&ends, 3);
}

static void still_none(void *ends)
{
	CHECK(atomic_load((_Atomic int *)ends) == 0);
}

static CUgraph with_object(CUgraph graph, _Atomic int *ends)
{
	CUuserObject object;

	FINE(cuUserObjectCreate(&object, ends, ended, 1, 1));
	FINE(cuGraphRetainUserObject(graph, object, 1, 1));
	return graph;
}

static CUgraph slow_graph(CUgraphNode *node)
{
	CUDA_KERNEL_NODE_PARAMS p = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
	CUmodule module;
	CUgraph g;

	FINE(cuModuleLoadData(&module, spin_ptx));
	FINE(cuModuleGetFunction(&p.func, module, "spin"));
	FINE(cuGraphCreate(&g, 0));
	FINE(cuGraphAddKernelNode_v2(node, g, NULL, 0, &p));
	return g;
}

/* An executable graph has those of the graph that it was updated with, and it has them until its launches are done. */
void check_user_objects_used(void)
{
	static _Atomic int first_ends, second_ends, child_ends, new_child_ends;
	CUgraphExecUpdateResultInfo info;
	CUgraph g, with, inner, outer;
	CUgraphExec exec, other;
	CUgraphNode node;
	CUstream s;

	start();
	FINE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	g = with_object(slow_graph(&node), &first_ends);
	with = with_object(slow_graph(&node), &second_ends);
	FINE(cuGraphInstantiateWithFlags(&exec, g, 0));
	FINE(cuGraphDestroy(g));
	for (int i = 0; i < 20; i++)
		FINE(cuGraphLaunch(exec, s));
	FINE(cuLaunchHostFunc(s, still_none, &first_ends));
	FINE(cuGraphExecUpdate_v2(exec, with, &info));
	FINE(cuGraphDestroy(with));
	FINE(cuStreamSynchronize(s));
	wait_for_end(&first_ends, 1);
	CHECK(atomic_load(&second_ends) == 0);
	for (int i = 0; i < 20; i++)
		FINE(cuGraphLaunch(exec, s));
	FINE(cuLaunchHostFunc(s, still_none, &second_ends));
	FINE(cuGraphExecDestroy(exec));
	FINE(cuStreamSynchronize(s));
	wait_for_end(&second_ends, 1);

	inner = with_object(slow_graph(&node), &child_ends);
	FINE(cuGraphCreate(&outer, 0));
	FINE(cuGraphAddChildGraphNode(&node, outer, NULL, 0, inner));
	FINE(cuGraphDestroy(inner));
	FINE(cuGraphInstantiateWithFlags(&other, outer, 0));
	inner = with_object(slow_graph(&(CUgraphNode){NULL}), &new_child_ends);
	FINE(cuGraphExecChildGraphNodeSetParams(other, node, inner));
	FINE(cuGraphDestroy(inner));
	CHECK(atomic_load(&child_ends) == 0); /* the node has it */
	FINE(cuGraphDestroy(outer));
	wait_for_end(&child_ends, 1);
	CHECK(atomic_load(&new_child_ends) == 0);
	FINE(cuGraphExecDestroy(other));
	wait_for_end(&new_child_ends, 1);
}
