/* The nodes of a graph and what depends on what: asking, taking away, copying. */
#include "graph.h"

#include <string.h>

/* A list as NVIDIA documents it: where there is none *count becomes the number; else at most *count, and NULL for the rest. */
struct list {
	CUgraphNode *from, *to;
	size_t room, count;
};

static void list_add(struct list *l, CUgraphNode from, CUgraphNode to)
{
	if (l->count < l->room) {
		if (l->from)
			l->from[l->count] = from;
		if (l->to)
			l->to[l->count] = to;
	}
	l->count++;
}

static void list_end(struct list *l, CUgraphEdgeData *edges, size_t *count)
{
	for (size_t i = l->count; i < l->room; i++) {
		if (l->from)
			l->from[i] = NULL;
		if (l->to)
			l->to[i] = NULL;
	}
	*count = (l->from || l->to) && l->count > l->room ? l->room : l->count;
	if (edges && l->from) /* all are plain dependencies */
		memset(edges, 0, *count * sizeof(*edges));
}

static struct list list_of(CUgraphNode *from, CUgraphNode *to, const size_t *count)
{
	return (struct list){from, to, from || to ? *count : 0, 0};
}

static CUresult nodes_of(CUgraph graph, bool roots, CUgraphNode *nodes, size_t *count)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct list l;

	if (!count)
		return r;
	l = list_of(nodes, NULL, count);
	process_lock();
	if (object_is(OBJECT_GRAPH, graph)) {
		for (CUgraphNode n = graph->first; n; n = n->next) {
			if (!roots || !n->dep_count)
				list_add(&l, n, NULL);
		}
		list_end(&l, NULL, count);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	return nodes_of(graph, false, nodes, count);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	return nodes_of(graph, true, nodes, count);
}

static CUresult edges_of(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct list l;

	if (!count || !from != !to)
		return r;
	l = list_of(from, to, count);
	process_lock();
	if (object_is(OBJECT_GRAPH, graph)) {
		for (CUgraphNode n = graph->first; n; n = n->next) {
			for (size_t i = 0; i < n->dep_count; i++)
				list_add(&l, n->deps[i], n);
		}
		list_end(&l, edges, count);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	ENTER();
	return edges_of(graph, from, to, NULL, count);
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
	ENTER();
	return edges_of(graph, from, to, edges, count);
}

static CUresult neighbours(CUgraphNode node, bool before, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct list l;

	if (!count)
		return r;
	l = list_of(nodes, NULL, count);
	process_lock();
	if (object_is(OBJECT_NODE, node)) {
		for (size_t i = 0; before && i < node->dep_count; i++)
			list_add(&l, node->deps[i], NULL);
		for (CUgraphNode n = before ? NULL : node->graph->first; n; n = n->next) {
			if (node_depends(n, node))
				list_add(&l, n, NULL);
		}
		list_end(&l, edges, count);
		r = CUDA_SUCCESS;
	}
	process_unlock();
	return r;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	return neighbours(node, true, nodes, NULL, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
	ENTER();
	return neighbours(node, true, nodes, edges, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	return neighbours(node, false, nodes, NULL, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
	ENTER();
	return neighbours(node, false, nodes, edges, count);
}

static bool has_memory(CUgraph g)
{
	CUgraphNode n = g->first;

	while (n && n->type != CU_GRAPH_NODE_MEM_ALLOC && n->type != CU_GRAPH_NODE_MEM_FREE)
		n = n->next;
	return n != NULL;
}

static void take_away(CUgraphNode node, CUgraphNode dep)
{
	for (size_t i = 0; i < node->dep_count; i++) {
		if (node->deps[i] == dep) {
			memmove(&node->deps[i], &node->deps[i + 1], (--node->dep_count - i) * sizeof(dep));
			return;
		}
	}
}

/* Documented: not in a graph that allocates or frees. */
static CUresult remove_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	CUresult r = CUDA_SUCCESS;

	process_lock();
	if (!object_is(OBJECT_GRAPH, graph) || (count && (!from || !to)))
		r = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !r && i < count; i++) {
		if (!object_is(OBJECT_NODE, from[i]) || !object_is(OBJECT_NODE, to[i]) || to[i]->graph != graph || !node_depends(to[i], from[i]))
			r = CUDA_ERROR_INVALID_VALUE;
	}
	if (!r && has_memory(graph))
		r = CUDA_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; !r && i < count; i++)
		take_away(to[i], from[i]);
	process_unlock();
	return r;
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	ENTER();
	return remove_dependencies(graph, from, to, count);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				      const CUgraphEdgeData *edges, size_t count)
{
	(void)edges;
	ENTER();
	return remove_dependencies(graph, from, to, count);
}

CUresult cuGraphDestroyNode(CUgraphNode node)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (!object_is(OBJECT_NODE, node))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (has_memory(node->graph))
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r) {
		CUgraph g = node->graph;
		CUgraphNode *at = &g->first;

		for (CUgraphNode n = g->first; n; n = n->next)
			take_away(n, node);
		while (*at != node)
			at = &(*at)->next;
		*at = node->next;
		if (!node->next)
			g->last = at;
		g->count--;
		node_free(node);
	}
	process_unlock();
	return r;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (!clone || !object_is(OBJECT_GRAPH, graph))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (has_memory(graph))
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r) {
		*clone = graph_copy(graph);
		r = *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	process_unlock();
	return r;
}

/* The node of that graph, or of a child graph in it, which is a copy of the one with that number. */
static CUgraphNode find_copy(CUgraph g, uint64_t id)
{
	CUgraphNode found = NULL;

	for (CUgraphNode n = g->first; n && !found; n = n->next) {
		found = n->copy_of == id ? n : NULL;
		if (!found && n->child)
			found = find_copy(n->child, id);
	}
	return found;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode node, CUgraph clone)
{
	CUgraphNode copy = NULL;

	ENTER();
	process_lock();
	if (object_is(OBJECT_NODE, node) && object_is(OBJECT_GRAPH, clone))
		copy = find_copy(clone, node->id);
	process_unlock();
	if (!found || !copy)
		return CUDA_ERROR_INVALID_VALUE;
	*found = copy;
	return CUDA_SUCCESS;
}
