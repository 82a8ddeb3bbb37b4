/* A graph as text for Graphviz. */
#include "graph.h"

#include <stdio.h>

static const char *type_name(int type)
{
	static const char *const names[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT", "EVENT_RECORD",
					    "EXT_SEMAS_SIGNAL", "EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE"};

	return (size_t)type < sizeof(names) / sizeof(names[0]) ? names[type] : "?";
}

static void print_graph(FILE *out, CUgraph g, bool inner)
{
	fprintf(out, inner ? "subgraph cluster_%llu {\n" : "digraph dot {\n", (unsigned long long)(g->first ? g->first->id : 0));
	for (CUgraphNode n = g->first; n; n = n->next) {
		fprintf(out, "\"node_%llu\" [label=\"%llu\\n%s%s%s\"];\n", (unsigned long long)n->id, (unsigned long long)n->id,
			type_name(n->type), n->kernel.func ? "\\n" : "", n->kernel.func && object_is(OBJECT_FUNCTION, n->kernel.func) ? n->kernel.func->name : "");
		for (size_t i = 0; i < n->dep_count; i++)
			fprintf(out, "\"node_%llu\" -> \"node_%llu\";\n", (unsigned long long)n->deps[i]->id, (unsigned long long)n->id);
		if (n->child)
			print_graph(out, n->child, true);
	}
	fprintf(out, "}\n");
}

#define DOT_FLAGS 0xffffu

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
	FILE *out = NULL;
	bool known;

	ENTER();
	if (!path || (flags & ~DOT_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	known = object_is(OBJECT_GRAPH, graph);
	if (known)
		out = fopen(path, "we");
	if (out)
		print_graph(out, graph, false);
	process_unlock();
	if (!known)
		return CUDA_ERROR_INVALID_VALUE;
	return out && !fclose(out) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
