/* Executable graphs that get what other graphs are set to. */
#include "graph_exec.h"

#include <stdlib.h>

static int compare(const struct task *a, const struct task *b)
{
	if (!a || !b || a->before != b->before)
		return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
	if (a->type != b->type)
		return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
	if (a->ctx != b->ctx || a->ptr != b->ptr || a->bytes != b->bytes)
		return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
	return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* The first of its nodes that does not fit what the graph was that exec is made of. */
static CUgraphExecUpdateResultInfo compare_all(CUgraphExec exec, CUgraphExec with)
{
	CUgraphExecUpdateResultInfo info = {0};
	const struct task *a = exec->tasks, *b = with->tasks;

	while ((a || b) && !info.result) {
		info.result = compare(a, b);
		info.errorNode = info.result && b ? b->node : NULL;
		a = a ? a->next : NULL;
		b = b ? b->next : NULL;
	}
	return info;
}

/* The same nodes in the same order, also inside. */
static bool same_shape(CUgraph a, CUgraph b)
{
	CUgraphNode n = a->first, m = b->first;

	while (n && m && n->type == m->type && n->dep_count == m->dep_count && !n->child == !m->child && (!n->child || same_shape(n->child, m->child))) {
		n = n->next;
		m = m->next;
	}
	return !n && !m;
}

static bool set_objects(CUgraphExec exec, struct task *t, CUgraph to)
{
	struct kept *old = t->objects;

	t->objects = NULL;
	user_objects_let_go_after(old, exec->used);
	return user_objects_keep(&t->objects, to->objects);
}

/* The task is the graph `of`. False: no memory. */
static bool set_child(CUgraphExec exec, struct task *task, CUgraph of, CUgraph to)
{
	bool done = set_objects(exec, task, to);

	for (CUgraphNode n = of->first, m = to->first; done && n; n = n->next, m = m->next) {
		struct task *t = graph_exec_task(exec, n);

		if (t)
			task_set(t, m);
		if (t && n->child)
			done = set_child(exec, t, n->child, m->child);
	}
	return done;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct task *t;

	ENTER();
	process_lock();
	if (object_is(OBJECT_EXEC, exec) && object_is(OBJECT_NODE, node) && node->child && object_is(OBJECT_GRAPH, child) &&
	    (t = graph_exec_task(exec, node)) && same_shape(node->child, child))
		r = set_child(exec, t, node->child, child) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	process_unlock();
	return r;
}

static void swap(struct kept **a, struct kept **b)
{
	struct kept *was = *a;

	*a = *b;
	*b = was;
}

/* What exec had is used until its last launch is done. */
static void take(CUgraphExec exec, CUgraphExec with)
{
	with->used = exec->used;
	swap(&exec->objects, &with->objects);
	for (struct task *a = exec->tasks, *b = with->tasks; a; a = a->next, b = b->next) {
		task_set(a, b->node);
		swap(&a->objects, &b->objects);
	}
}

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	CUgraphExec with = calloc(1, sizeof(*with));
	CUresult r = with ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	if (!with)
		return r;
	with->last = &with->tasks;
	process_lock();
	r = object_is(OBJECT_EXEC, exec) && object_is(OBJECT_GRAPH, graph) ? exec_fill(with, graph) : CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		*info = compare_all(exec, with);
		r = info->result ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : CUDA_SUCCESS;
	}
	if (!r)
		take(exec, with);
	exec_free(with);
	process_unlock();
	return r;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *result)
{
	CUgraphExecUpdateResultInfo info = {0};
	CUresult r;

	ENTER();
	if (!result)
		return CUDA_ERROR_INVALID_VALUE;
	r = update(exec, graph, &info);
	*result = info.result;
	if (error)
		*error = info.errorNode;
	return r;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	CUgraphExecUpdateResultInfo found = {0};
	CUresult r;

	ENTER();
	if (!info)
		return CUDA_ERROR_INVALID_VALUE;
	r = update(exec, graph, &found);
	*info = found;
	return r;
}
