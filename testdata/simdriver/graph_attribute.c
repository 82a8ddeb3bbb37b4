/* Attributes of kernel nodes: kept, and of no effect on the simulated GPU. */
#include "graph.h"

#include <stdlib.h>

enum { ACCESS_POLICY_WINDOW = 1, COOPERATIVE, CLUSTER_DIMENSION = 4, CLUSTER_SCHEDULING, PRIORITY = 8, MEM_SYNC_DOMAIN_MAP, MEM_SYNC_DOMAIN,
	ATTRIBUTES };

struct kernel_settings {
	CUkernelNodeAttrValue value[ATTRIBUTES];
};

static bool exists(int attribute)
{
	return attribute == ACCESS_POLICY_WINDOW || attribute == COOPERATIVE || attribute == CLUSTER_DIMENSION ||
	       attribute == CLUSTER_SCHEDULING || (attribute >= PRIORITY && attribute <= MEM_SYNC_DOMAIN);
}

bool node_copy_settings(CUgraphNode to, CUgraphNode from)
{
	if (!from->settings) {
		free(to->settings);
		to->settings = NULL;
		return true;
	}
	if (!to->settings)
		to->settings = malloc(sizeof(*to->settings));
	if (to->settings)
		*to->settings = *from->settings;
	return to->settings != NULL;
}

static bool is_kernel(CUgraphNode node)
{
	return object_is(OBJECT_NODE, node) && node->type == CU_GRAPH_NODE_KERNEL;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, int attribute, CUkernelNodeAttrValue *value)
{
	static const CUkernelNodeAttrValue none;
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (value && exists(attribute) && is_kernel(node)) {
		*value = node->settings ? node->settings->value[attribute] : none;
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int attribute, const CUkernelNodeAttrValue *value)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (value && exists(attribute) && is_kernel(node)) {
		if (!node->settings)
			node->settings = calloc(1, sizeof(*node->settings));
		if (node->settings)
			node->settings->value[attribute] = *value;
		r = node->settings ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	process_unlock();
	return r;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	process_lock();
	if (is_kernel(dst) && is_kernel(src))
		r = dst == src || node_copy_settings(dst, src) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	process_unlock();
	return r;
}
