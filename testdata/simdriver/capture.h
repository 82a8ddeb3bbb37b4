/* Inside libcuda.so.1: what is captured. */
#ifndef SIMDRIVER_CAPTURE_H
#define SIMDRIVER_CAPTURE_H

#include "graph.h"

struct capture {
	struct capture *next;
	uint64_t id;
	int mode;
	bool invalid;
	const void *thread;
	CUstream origin;
	CUgraph graph;
	bool borrowed; /* the graph is the program's */
};

/* Process lock held. A node is in the set only once. */
CUresult capture_depend(struct nodes **set, const CUgraphNode *node, size_t count);
/* into: a graph of the program; NULL: a new one. */
CUresult capture_begin(CUstream handle, CUgraph into, const CUgraphNode *deps, size_t count, int mode);

#endif
