/* Graphs and their nodes. */
#include "graph.h"

#include "allocation.h"
#include "pool.h"
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

CUgraph graph_new(void)
{
	CUgraph g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->last = &g->first;
	if (object_add(OBJECT_GRAPH, g))
		return g;
	free(g);
	return NULL;
}

void graph_free(CUgraph g)
{
	for (CUgraphNode node = g->first, next; node; node = next) {
		next = node->next;
		if (node->child)
			graph_free(node->child);
		if (node->type == CU_GRAPH_NODE_MEM_ALLOC)
			allocation_unhold(node->ptr);
		object_remove(node);
		free(node->transfer);
		free(node);
	}
	object_remove(g);
	free(g);
}

CUgraphNode graph_add(CUgraph g, int type, const CUgraphNode *deps, size_t count)
{
	CUgraphNode node = calloc(1, sizeof(*node));

	if (!node || !object_add(OBJECT_NODE, node)) {
		free(node);
		return NULL;
	}
	node->graph = g;
	node->type = type;
	for (size_t i = 0; i < count; i++) {
		deps[i]->leads = true;
		if (i < MAX_DEPENDENCIES)
			node->after.node[node->after.count++] = deps[i];
	}
	*g->last = node;
	g->last = &node->next;
	g->count++;
	return node;
}

/* Marks what the node depends on, and itself. */
static void mark(CUgraphNode node, unsigned walk)
{
	while (node && node->seen != walk) {
		node->seen = walk;
		for (size_t i = 1; i < node->after.count; i++)
			mark(node->after.node[i], walk);
		node = node->after.count ? node->after.node[0] : NULL; /* in a chain, however long */
	}
}

/*
 * A node of which the memory can be used again by one that takes as much after what is marked: it was freed there. Documented: "the same
 * virtual address ranges" for allocations of which the lifetimes do not overlap.
 */
static CUgraphNode find_freed(CUgraph g, CUdevice dev, size_t bytes, unsigned walk)
{
	for (CUgraphNode n = g->first; n; n = n->next) {
		bool freed = false;

		if (n->type != CU_GRAPH_NODE_MEM_ALLOC || n->device != dev || n->bytes < bytes)
			continue;
		for (CUgraphNode later = n->next; later; later = later->next) {
			if (later->ptr == n->ptr && later->type == CU_GRAPH_NODE_MEM_FREE)
				freed = later->seen == walk;
			else if (later->ptr == n->ptr && later->type == CU_GRAPH_NODE_MEM_ALLOC)
				freed = false;
		}
		if (freed)
			return n;
	}
	return NULL;
}

CUgraphNode graph_add_alloc(CUgraph g, CUdevice dev, size_t bytes, const CUgraphNode *deps, size_t count)
{
	static unsigned walk; /* process lock */
	CUgraphNode freed, node = graph_add(g, CU_GRAPH_NODE_MEM_ALLOC, deps, count);

	if (!node)
		return NULL;
	mark(node, ++walk);
	freed = find_freed(g, dev, bytes, walk);
	node->device = dev;
	node->bytes = bytes;
	node->ptr = freed ? freed->ptr : allocation_addresses(dev, bytes);
	if (freed)
		allocation_hold(freed->ptr);
	return node;
}

bool graph_set_transfer(CUgraphNode node, const struct transfer *t)
{
	if (!node->transfer)
		node->transfer = malloc(sizeof(*t));
	if (node->transfer)
		*node->transfer = *t;
	return node->transfer != NULL;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	ENTER();
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	*graph = graph_new();
	process_unlock();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (object_is(OBJECT_GRAPH, graph) && !graph->owned)
		graph_free(graph);
	else
		r = CUDA_ERROR_INVALID_VALUE;
	process_unlock();
	return r;
}

/* Process lock held. */
static bool bad_place(CUgraph g, const CUgraphNode *deps, size_t count)
{
	bool bad = !object_is(OBJECT_GRAPH, g) || (count && !deps);

	for (size_t i = 0; !bad && i < count; i++)
		bad = !object_is(OBJECT_NODE, deps[i]) || deps[i]->graph != g;
	return bad;
}

static CUgraph copy_of(CUgraph g)
{
	CUgraph copy = graph_new();

	for (CUgraphNode from = g->first; copy && from; from = from->next) {
		CUgraphNode to = graph_add(copy, from->type, NULL, 0);

		if (!to)
			return copy;
		to->ns = from->ns;
		to->ptr = from->ptr;
		to->bytes = from->bytes;
		to->device = from->device;
		if (from->transfer && !graph_set_transfer(to, from->transfer))
			return copy;
		if (to->type == CU_GRAPH_NODE_MEM_ALLOC)
			allocation_hold(to->ptr);
		to->child = from->child ? copy_of(from->child) : NULL;
	}
	return copy;
}

/* What a node is made of; the lock is held. */
struct recipe {
	int type;
	const CUDA_KERNEL_NODE_PARAMS *kernel;
	CUDA_MEM_ALLOC_NODE_PARAMS *alloc;
	CUdeviceptr ptr;
	CUgraph child;
	const struct transfer *transfer;
};

static CUresult check(const struct recipe *r)
{
	switch (r->type) {
	case CU_GRAPH_NODE_KERNEL:
		return r->kernel && object_is(OBJECT_FUNCTION, r->kernel->func) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_MEM_ALLOC:
		if (!r->alloc || !r->alloc->bytesize || r->alloc->poolProps.allocType != 1 ||
		    r->alloc->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || r->alloc->poolProps.handleTypes)
			return CUDA_ERROR_INVALID_VALUE;
		return device_gpu(r->alloc->poolProps.location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_GRAPH_NODE_GRAPH:
		return object_is(OBJECT_GRAPH, r->child) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_MEMCPY:
	case CU_GRAPH_NODE_MEMSET:
		return transfer_check(r->transfer);
	case CU_GRAPH_NODE_EMPTY:
	case CU_GRAPH_NODE_MEM_FREE:
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

static CUresult add(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count, struct recipe recipe)
{
	CUgraphNode node = NULL;
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	if (!out)
		return r;
	process_lock();
	if (!bad_place(g, deps, count))
		r = check(&recipe);
	if (!r && recipe.type == CU_GRAPH_NODE_MEM_ALLOC)
		node = graph_add_alloc(g, recipe.alloc->poolProps.location.id, recipe.alloc->bytesize, deps, count);
	else if (!r)
		node = graph_add(g, recipe.type, deps, count);
	if (!r && !node)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (!r) {
		*out = node;
		if (recipe.kernel)
			node->ns = kernel_time(recipe.kernel->func, process.devices[recipe.kernel->func->module->ctx->device].gpu,
					       (unsigned[]){recipe.kernel->gridDimX, recipe.kernel->gridDimY, recipe.kernel->gridDimZ});
		if (recipe.alloc)
			recipe.alloc->dptr = node->ptr;
		else
			node->ptr = recipe.ptr;
		if (recipe.transfer && !graph_set_transfer(node, recipe.transfer))
			r = CUDA_ERROR_OUT_OF_MEMORY;
		if (recipe.child)
			node->child = copy_of(recipe.child);
		if (node->child)
			node->child->owned = true;
	}
	process_unlock();
	return r;
}

#define PLACE CUgraphNode *node, CUgraph graph, const CUgraphNode *deps

CUresult cuGraphAddKernelNode(PLACE, size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_KERNEL, .kernel = params});
}

CUresult cuGraphAddKernelNode_v2(PLACE, size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_KERNEL, .kernel = params});
}

CUresult cuGraphAddEmptyNode(PLACE, size_t count)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_EMPTY});
}

CUresult cuGraphAddChildGraphNode(PLACE, size_t count, CUgraph child)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_GRAPH, .child = child});
}

CUresult cuGraphAddMemAllocNode(PLACE, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_MEM_ALLOC, .alloc = params});
}

CUresult cuGraphAddMemFreeNode(PLACE, size_t count, CUdeviceptr ptr)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_MEM_FREE, .ptr = ptr});
}

CUresult graph_add_transfer(PLACE, size_t count, int type, const struct transfer *t)
{
	return add(node, graph, deps, count, (struct recipe){.type = type, .transfer = t});
}

static CUresult add_any(PLACE, size_t count, CUgraphNodeParams *p)
{
	struct recipe recipe = {.type = p ? p->type : -1};
	struct transfer t;
	CUresult r;

	if (recipe.type == CU_GRAPH_NODE_MEMCPY || recipe.type == CU_GRAPH_NODE_MEMSET) {
		r = recipe.type == CU_GRAPH_NODE_MEMCPY ? transfer_of_3d(&t, &p->copy.params) : transfer_of_memset(&t, &p->fill);
		return r ? r : graph_add_transfer(node, graph, deps, count, recipe.type, &t);
	}

	if (recipe.type == CU_GRAPH_NODE_KERNEL)
		recipe.kernel = &p->kernel;
	else if (recipe.type == CU_GRAPH_NODE_MEM_ALLOC)
		recipe.alloc = &p->alloc;
	else if (recipe.type == CU_GRAPH_NODE_MEM_FREE)
		recipe.ptr = p->free;
	else if (recipe.type == CU_GRAPH_NODE_GRAPH)
		recipe.child = p->child;
	return add(node, graph, deps, count, recipe);
}

CUresult cuGraphAddNode(PLACE, size_t count, CUgraphNodeParams *params)
{
	ENTER();
	return add_any(node, graph, deps, count, params);
}

CUresult cuGraphAddNode_v2(PLACE, const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
	(void)edges;
	ENTER();
	return add_any(node, graph, deps, count, params);
}

static CUresult depend(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	CUresult r;

	process_lock();
	r = bad_place(graph, from, count) || bad_place(graph, to, count) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	for (size_t i = 0; !r && i < count; i++) {
		from[i]->leads = true;
		if (to[i]->after.count < MAX_DEPENDENCIES)
			to[i]->after.node[to[i]->after.count++] = from[i];
	}
	process_unlock();
	return r;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	ENTER();
	return depend(graph, from, to, count);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				   const CUgraphEdgeData *edges, size_t count)
{
	(void)edges;
	ENTER();
	return depend(graph, from, to, count);
}

/* nodes NULL: *count is set to the number of nodes. If *count is larger than that number, the other entries become NULL and *count the number. */
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult r = CUDA_SUCCESS;
	size_t i = 0;

	ENTER();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	if (!object_is(OBJECT_GRAPH, graph))
		r = CUDA_ERROR_INVALID_VALUE;
	for (CUgraphNode n = r ? NULL : graph->first; nodes && n && i < *count; n = n->next)
		nodes[i++] = n;
	for (size_t rest = i; !r && nodes && rest < *count; rest++)
		nodes[rest] = NULL;
	if (!r)
		*count = nodes ? i : graph->count;
	process_unlock();
	return r;
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
