/* Graphs and their nodes. */
#include "graph.h"

#include "allocation.h"
#include "memop.h"
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

void node_free(CUgraphNode node)
{
	if (node->child)
		graph_free(node->child);
	if (node->type == CU_GRAPH_NODE_MEM_ALLOC)
		allocation_unhold(node->ptr);
	object_remove(node);
	memops_unuse(node->memops);
	free(node->transfer);
	free(node->arguments);
	free(node->settings);
	free(node->deps);
	free(node);
}

void graph_free(CUgraph g)
{
	for (CUgraphNode node = g->first, next; node; node = next) {
		next = node->next;
		node_free(node);
	}
	user_objects_let_go(g->objects);
	object_remove(g);
	free(g);
}

bool node_depends(CUgraphNode node, CUgraphNode on)
{
	size_t i = 0;

	while (i < node->dep_count && node->deps[i] != on)
		i++;
	return i < node->dep_count;
}

static bool add_dependency(CUgraphNode node, CUgraphNode on)
{
	if (node->dep_count == node->dep_room) {
		size_t room = node->dep_room ? 2 * node->dep_room : 2;
		CUgraphNode *more = realloc(node->deps, room * sizeof(*more));

		if (!more)
			return false;
		node->deps = more;
		node->dep_room = room;
	}
	node->deps[node->dep_count++] = on;
	on->leads = true;
	return true;
}

CUgraphNode graph_add(CUgraph g, int type, const CUgraphNode *deps, size_t count)
{
	static uint64_t last_id; /* process lock */
	CUgraphNode node = calloc(1, sizeof(*node));
	bool done = node && object_add(OBJECT_NODE, node);

	if (node) {
		node->graph = g;
		node->type = type;
		node->id = ++last_id;
	}
	for (size_t i = 0; done && i < count; i++)
		done = add_dependency(node, deps[i]);
	if (!done) {
		if (node)
			object_remove(node);
		free(node ? node->deps : NULL);
		free(node);
		return NULL;
	}
	*g->last = node;
	g->last = &node->next;
	g->count++;
	return node;
}

unsigned graph_walk(void)
{
	static unsigned walk; /* process lock */

	return ++walk;
}

/* Marks what the node depends on, and itself. */
static void mark(CUgraphNode node, unsigned walk)
{
	while (node && node->seen != walk) {
		node->seen = walk;
		for (size_t i = 1; i < node->dep_count; i++)
			mark(node->deps[i], walk);
		node = node->dep_count ? node->deps[0] : NULL; /* in a chain, however long */
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
	CUgraphNode freed, node = graph_add(g, CU_GRAPH_NODE_MEM_ALLOC, deps, count);
	unsigned walk = graph_walk();

	if (!node)
		return NULL;
	mark(node, walk);
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

static bool copy_node(CUgraphNode to, CUgraphNode from)
{
	to->copy_of = from->id;
	to->load = from->load;
	to->ptr = from->ptr;
	to->bytes = from->bytes;
	to->device = from->device;
	to->host = from->host;
	to->event = from->event;
	to->memops = memops_use(from->memops);
	to->kernel = from->kernel;
	to->kernel.kernelParams = NULL;
	if (to->type == CU_GRAPH_NODE_MEM_ALLOC)
		allocation_hold(to->ptr);
	if (from->transfer && !graph_set_transfer(to, from->transfer))
		return false;
	if (from->arguments && object_is(OBJECT_FUNCTION, from->kernel.func) && !node_set_kernel(to, &from->kernel))
		return false;
	if (!node_copy_settings(to, from))
		return false;
	to->child = from->child ? graph_copy(from->child) : NULL;
	if (to->child)
		to->child->owned = true;
	return !from->child || to->child;
}

CUgraph graph_copy(CUgraph g)
{
	CUgraph copy = graph_new();
	CUgraphNode *nodes = calloc(g->count + 1, sizeof(*nodes));
	bool done = copy && nodes && user_objects_keep(&copy->objects, g->objects);
	size_t count = 0;

	for (CUgraphNode from = g->first; done && from; from = from->next) {
		from->place = count;
		nodes[count] = graph_add(copy, from->type, NULL, 0);
		done = nodes[count] && copy_node(nodes[count], from);
		count++;
	}
	for (CUgraphNode from = g->first; done && from; from = from->next) {
		for (size_t i = 0; done && i < from->dep_count; i++)
			done = add_dependency(nodes[from->place], nodes[from->deps[i]->place]);
	}
	free(nodes);
	if (!done && copy) {
		graph_free(copy);
		copy = NULL;
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
	CUDA_HOST_NODE_PARAMS host;
	CUevent event;
	const CUDA_BATCH_MEM_OP_NODE_PARAMS *memops;
};

static CUresult check(const struct recipe *r)
{
	switch (r->type) {
	case CU_GRAPH_NODE_KERNEL:
		return node_check_kernel(r->kernel);
	case CU_GRAPH_NODE_HOST:
		return r->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_EVENT_RECORD:
	case CU_GRAPH_NODE_WAIT_EVENT:
		return object_is(OBJECT_EVENT, r->event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
	case CU_GRAPH_NODE_BATCH_MEM_OP:
		return r->memops ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
	struct memops *memops = NULL;
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	if (!out)
		return r;
	process_lock();
	if (!bad_place(g, deps, count))
		r = check(&recipe);
	if (!r && recipe.memops)
		r = memops_make(&memops, recipe.memops->ctx, recipe.memops->paramArray, recipe.memops->count, recipe.memops->flags);
	if (!r && recipe.type == CU_GRAPH_NODE_MEM_ALLOC)
		node = graph_add_alloc(g, recipe.alloc->poolProps.location.id, recipe.alloc->bytesize, deps, count);
	else if (!r)
		node = graph_add(g, recipe.type, deps, count);
	if (!r && !node)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (!r) {
		*out = node;
		if (recipe.kernel && !node_set_kernel(node, recipe.kernel))
			r = CUDA_ERROR_OUT_OF_MEMORY;
		node->host = recipe.host;
		node->event = recipe.event;
		node->memops = memops_use(memops);
		if (recipe.alloc)
			recipe.alloc->dptr = node->ptr;
		else
			node->ptr = recipe.ptr;
		if (recipe.transfer && !graph_set_transfer(node, recipe.transfer))
			r = CUDA_ERROR_OUT_OF_MEMORY;
		if (recipe.child)
			node->child = graph_copy(recipe.child);
		if (node->child)
			node->child->owned = true;
	}
	memops_unuse(memops);
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

CUresult cuGraphAddHostNode(PLACE, size_t count, const CUDA_HOST_NODE_PARAMS *params)
{
	ENTER();
	return params ? add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_HOST, .host = *params}) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddEventRecordNode(PLACE, size_t count, CUevent event)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_EVENT_RECORD, .event = event});
}

CUresult cuGraphAddEventWaitNode(PLACE, size_t count, CUevent event)
{
	ENTER();
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_WAIT_EVENT, .event = event});
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

CUresult graph_add_memops(PLACE, size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
	return add(node, graph, deps, count, (struct recipe){.type = CU_GRAPH_NODE_BATCH_MEM_OP, .memops = p});
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
	else if (recipe.type == CU_GRAPH_NODE_HOST)
		recipe.host = p->host;
	else if (recipe.type == CU_GRAPH_NODE_EVENT_RECORD || recipe.type == CU_GRAPH_NODE_WAIT_EVENT)
		recipe.event = p->event;
	else if (recipe.type == CU_GRAPH_NODE_BATCH_MEM_OP)
		recipe.memops = &p->memops;
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
		if (node_depends(to[i], from[i]) || to[i] == from[i])
			r = CUDA_ERROR_INVALID_VALUE;
		else if (!add_dependency(to[i], from[i]))
			r = CUDA_ERROR_OUT_OF_MEMORY;
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
