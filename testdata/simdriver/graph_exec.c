/*
 * Executable graphs: launching them, and the memory behind their allocation nodes. A launch (or an upload) reserves it on
 * the device, in pages. It stays with that executable graph until another one takes it over: one in the same stream, or any
 * when the work is done. Only cuDeviceGraphMemTrim gives it back, when it is idle.
 */
#include "graph.h"

#include "pool.h"
#include "transfer.h"

#include <stdlib.h>

#define PAGE (2ull << 20)

struct part { /* physical memory, in one state */
	struct part *next;
	CUgraphExec owner; /* NULL: cached */
	CUdevice device;
	CUstream stream; /* of the last use, */
	struct queue *queue; /* which is over when that has come so far; NULL: it was never used */
	uint64_t tail;
	bool held; /* it will be used, or what is in it is not freed yet */
	uint64_t bytes;
};

struct live { /* an allocation that its graph does not free */
	struct live *next;
	CUdeviceptr ptr;
	CUgraphExec exec; /* NULL: destroyed */
	CUdevice device;
	uint64_t bytes;
};

struct work { /* a copy or a fill */
	struct work *next;
	CUgraphNode node;
	struct transfer transfer;
};

struct CUgraphExec_st {
	CUcontext ctx;
	bool auto_free;
	uint64_t ns; /* that its kernels take */
	unsigned launches;
	uint64_t need[MAX_GPUS]; /* bytes of memory, by device */
	struct live *kept;	  /* what a launch leaves allocated */
	struct live *uses;	  /* all that it allocates */
	struct work *work, **last; /* in the order in which they can be done */
};

static struct part *parts;
static struct live *living;
static struct {
	uint64_t reserved, reserved_high, used, used_high;
} memory[MAX_GPUS];

static void raise_to(uint64_t *high, uint64_t value)
{
	if (value > *high)
		*high = value;
}

static uint64_t owned(CUgraphExec exec, CUdevice dev)
{
	uint64_t sum = 0;

	for (struct part *p = parts; p; p = p->next)
		sum += p->owner == exec && p->device == dev ? p->bytes : 0;
	return sum;
}

static bool add_part(CUgraphExec owner, CUdevice dev, uint64_t bytes)
{
	struct part *p = malloc(sizeof(*p));

	if (p) {
		*p = (struct part){.next = parts, .owner = owner, .device = dev, .bytes = bytes};
		parts = p;
	}
	return p != NULL;
}

static bool idle(const struct part *p)
{
	return !p->held && (!p->queue || queue_done(p->queue, p->tail));
}

/* Takes over what others, or no one, have idle. */
static uint64_t take_over(CUgraphExec exec, CUdevice dev, CUstream stream, uint64_t wanted)
{
	uint64_t got = 0;

	for (struct part *p = parts; p && got < wanted; p = p->next) {
		uint64_t piece = p->bytes < wanted - got ? p->bytes : wanted - got;

		if (p->owner == exec || p->device != dev || p->held || (p->stream != stream && !idle(p)))
			continue;
		if (!add_part(exec, dev, piece))
			break;
		p->bytes -= piece;
		got += piece;
	}
	return got;
}

static CUresult map(CUgraphExec exec, CUdevice dev, CUstream stream)
{
	uint64_t has = owned(exec, dev), more;
	CUresult r;

	if (has >= exec->need[dev])
		return CUDA_SUCCESS;
	has += take_over(exec, dev, stream, exec->need[dev] - has);
	more = exec->need[dev] - has;
	if (!more)
		return CUDA_SUCCESS;
	r = from_errno(charge_take(&process.view, process.devices[dev].gpu, CHARGE_DATA, more));
	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		pools_trim(process.devices[dev].gpu);
		r = from_errno(charge_take(&process.view, process.devices[dev].gpu, CHARGE_DATA, more));
	}
	if (r)
		return r;
	if (!add_part(exec, dev, more)) {
		charge_return(&process.view, process.devices[dev].gpu, CHARGE_DATA, more);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memory[dev].reserved += more;
	raise_to(&memory[dev].reserved_high, memory[dev].reserved);
	return CUDA_SUCCESS;
}

static CUresult map_all(CUgraphExec exec, CUstream stream)
{
	CUresult r = CUDA_SUCCESS;

	for (unsigned i = 0; !r && i < process.device_count; i++)
		r = map(exec, (CUdevice)i, stream);
	return r;
}

static bool lives(CUgraphExec exec)
{
	bool any = false;

	for (struct live *l = living; l && !any; l = l->next)
		any = l->exec == exec;
	return any;
}

static void hold(CUgraphExec exec, bool held)
{
	for (struct part *p = parts; p; p = p->next) {
		if (p->owner == exec)
			p->held = held;
	}
}

static void used(CUgraphExec exec, CUstream stream, struct queue *q, uint64_t tail)
{
	for (struct part *p = parts; p; p = p->next) {
		if (p->owner == exec) {
			p->stream = stream;
			p->queue = q;
			p->tail = tail;
		}
	}
}

bool graph_memory_freed(CUdeviceptr ptr)
{
	for (struct live **at = &living; *at; at = &(*at)->next) {
		struct live *l = *at;

		if (l->ptr != ptr)
			continue;
		*at = l->next;
		memory[l->device].used -= l->bytes;
		if (l->exec && !lives(l->exec))
			hold(l->exec, false);
		allocation_unhold(l->ptr);
		free(l);
		return true;
	}
	return false;
}

static void free_living(CUgraphExec exec)
{
	for (struct live *l = living, *next; l; l = next) {
		next = l->next;
		if (l->exec == exec)
			graph_memory_freed(l->ptr);
	}
}

static void leave_living(CUgraphExec exec)
{
	for (struct live *k = exec->kept; k; k = k->next) {
		struct live *l = malloc(sizeof(*l));

		if (!l)
			continue;
		*l = *k;
		l->exec = exec;
		l->next = living;
		living = l;
		allocation_hold(l->ptr);
		memory[l->device].used += l->bytes;
		raise_to(&memory[l->device].used_high, memory[l->device].used);
	}
}

/* Its memory is there. Process lock held. */
static CUresult prepare(CUgraphExec exec, CUstream s)
{
	CUresult r;

	if (exec->auto_free)
		free_living(exec);
	if (lives(exec))
		return CUDA_ERROR_INVALID_VALUE; /* what its last launch left allocated is not freed yet */
	r = map_all(exec, s);
	if (!r)
		hold(exec, true);
	return r;
}

static CUresult run(CUgraphExec exec, CUcontext ctx, CUstream s, CUstream handle)
{
	CUresult r = stream_run(handle, exec->ns, exec->launches);

	process_lock();
	if (!r)
		leave_living(exec);
	hold(exec, lives(exec));
	used(exec, s, queue_of(ctx), stream_ready(ctx, s));
	process_unlock();
	for (struct work *w = r ? NULL : exec->work; !r && w; w = w->next)
		r = transfer_run(&w->transfer);
	return r;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool upload)
{
	CUcontext ctx;
	CUstream s;
	bool captured = false;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r && !object_is(OBJECT_EXEC, exec))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		ctx = s ? s->ctx : ctx;
		r = capture_check(ctx, s, &captured);
	}
	if (!r && captured)
		r = upload ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture_work(s, CU_GRAPH_NODE_GRAPH, 0);
	else if (!r)
		r = upload ? map_all(exec, s) : prepare(exec, s);
	process_unlock();
	return r || captured || upload ? r : run(exec, ctx, s, handle);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, per_thread(stream), false);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, true);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, per_thread(stream), true);
}

/* How many allocations at that address the graph makes, less those that it frees. */
static long left_in(CUgraph g, CUdeviceptr ptr)
{
	long left = 0;

	for (CUgraphNode n = g->first; n; n = n->next) {
		if (n->child)
			left += left_in(n->child, ptr);
		if (n->ptr == ptr)
			left += (n->type == CU_GRAPH_NODE_MEM_ALLOC) - (n->type == CU_GRAPH_NODE_MEM_FREE);
	}
	return left;
}

static bool knows(const struct live *list, CUdeviceptr ptr)
{
	while (list && list->ptr != ptr)
		list = list->next;
	return list != NULL;
}

static bool remember(struct live **list, CUgraphNode n)
{
	struct live *k = malloc(sizeof(*k));

	if (!k)
		return false;
	*k = (struct live){.next = *list, .ptr = n->ptr, .device = n->device, .bytes = n->bytes};
	*list = k;
	return true;
}

static bool add_work(CUgraphExec exec, CUgraphNode n)
{
	struct work *w = malloc(sizeof(*w));

	if (!w)
		return false;
	*w = (struct work){.node = n, .transfer = *n->transfer};
	*exec->last = w;
	exec->last = &w->next;
	return true;
}

static bool add_memory(CUgraphExec exec, CUgraph root, CUgraphNode n)
{
	if (knows(exec->uses, n->ptr)) /* of the first, which is the largest */
		return true;
	exec->need[n->device] += (n->bytes + PAGE - 1) / PAGE * PAGE;
	if (!remember(&exec->uses, n))
		return false;
	allocation_hold(n->ptr);
	return left_in(root, n->ptr) <= 0 || remember(&exec->kept, n);
}

/* False: no memory. */
static bool fill(CUgraphExec exec, CUgraph root, CUgraph g)
{
	bool done = true;

	for (CUgraphNode n = g->first; n && done; n = n->next) {
		if (n->child)
			done = fill(exec, root, n->child);
		exec->ns += n->ns;
		exec->launches += n->type == CU_GRAPH_NODE_KERNEL;
		if (n->transfer)
			done = add_work(exec, n);
		if (n->type == CU_GRAPH_NODE_MEM_ALLOC)
			done = add_memory(exec, root, n);
	}
	return done;
}

bool graph_exec_set_transfer(CUgraphExec exec, CUgraphNode node, const struct transfer *t)
{
	struct work *w = exec->work;

	while (w && w->node != node)
		w = w->next;
	if (w)
		w->transfer = *t;
	return w != NULL;
}

static void free_exec(CUgraphExec exec)
{
	for (struct live *k = exec->kept, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	for (struct live *u = exec->uses, *next; u; u = next) {
		next = u->next;
		allocation_unhold(u->ptr);
		free(u);
	}
	for (struct work *w = exec->work, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	free(exec);
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags, CUstream upload)
{
	CUgraphExec exec = calloc(1, sizeof(*exec));
	CUresult r = CUDA_SUCCESS;

	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->last = &exec->work;
	process_lock();
	if (!out || !object_is(OBJECT_GRAPH, graph) || (flags & ~0xfull))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		exec->auto_free = flags & CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH;
		r = object_add(OBJECT_EXEC, exec) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!r && !fill(exec, graph, graph)) {
		object_remove(exec);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r)
		free_exec(exec);
	else
		*out = exec;
	process_unlock();
	if (!r && (flags & CU_GRAPH_INSTANTIATE_UPLOAD)) {
		r = launch(exec, upload, true);
		if (r)
			cuGraphExecDestroy(exec);
	}
	return r;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	(void)error, (void)log, (void)size;
	ENTER();
	return instantiate(exec, graph, 0, NULL);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	(void)error, (void)log, (void)size;
	ENTER();
	return instantiate(exec, graph, 0, NULL);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTER();
	return instantiate(exec, graph, flags & ~(unsigned long long)CU_GRAPH_INSTANTIATE_UPLOAD, NULL);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER();
	return params ? instantiate(exec, graph, params->flags, params->hUploadStream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER();
	return params ? instantiate(exec, graph, params->flags, per_thread(params->hUploadStream)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	process_lock();
	if (object_is(OBJECT_EXEC, exec)) {
		object_remove(exec);
		for (struct part *p = parts; p; p = p->next) {
			if (p->owner == exec && !lives(exec))
				p->held = false;
			if (p->owner == exec)
				p->owner = NULL;
		}
		for (struct live *l = living; l; l = l->next) {
			if (l->exec == exec)
				l->exec = NULL;
		}
		free_exec(exec);
	} else {
		r = CUDA_ERROR_INVALID_VALUE;
	}
	process_unlock();
	return r;
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	CUresult r;

	ENTER();
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	r = capture_forbids_unsafe();
	if (r)
		return r;
	process_lock();
	for (struct part **at = &parts; *at;) {
		struct part *p = *at;

		if (p->bytes && (p->device != dev || !idle(p))) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		memory[p->device].reserved -= p->bytes;
		if (p->bytes)
			charge_return(&process.view, process.devices[p->device].gpu, CHARGE_DATA, p->bytes);
		free(p);
	}
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, void *value)
{
	ENTER();
	if (!value || attribute < CU_GRAPH_MEM_USED_CURRENT || attribute > CU_GRAPH_MEM_RESERVED_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	*(cuuint64_t *)value = attribute == CU_GRAPH_MEM_USED_CURRENT  ? memory[dev].used
			       : attribute == CU_GRAPH_MEM_USED_HIGH ? memory[dev].used_high
			       : attribute == CU_GRAPH_MEM_RESERVED_CURRENT ? memory[dev].reserved
									    : memory[dev].reserved_high;
	process_unlock();
	return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, int attribute, void *value)
{
	ENTER();
	if (!value || *(cuuint64_t *)value || (attribute != CU_GRAPH_MEM_USED_HIGH && attribute != CU_GRAPH_MEM_RESERVED_HIGH))
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_gpu(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	process_lock();
	if (attribute == CU_GRAPH_MEM_USED_HIGH)
		memory[dev].used_high = memory[dev].used;
	else
		memory[dev].reserved_high = memory[dev].reserved;
	process_unlock();
	return CUDA_SUCCESS;
}
