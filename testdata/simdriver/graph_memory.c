/*
 * The memory behind the allocation nodes of executable graphs. A launch (or an upload) reserves it on the device, in pages. It
 * stays with that executable graph until another one takes it over: one in the same stream, or any when the work is done. Only
 * cuDeviceGraphMemTrim gives it back, when it is idle.
 */
#include "graph_exec.h"

#include "pending.h"
#include "pool.h"

#include <stdlib.h>

struct part { /* physical memory, in one state */
	struct part *next;
	CUgraphExec owner; /* NULL: cached */
	CUdevice device;
	CUstream stream; /* of the last use, */
	struct queue *queue; /* which is over when that has come so far; NULL: it was never used */
	uint64_t tail;
	uint64_t pending; /* the number of that moment in pending.c, while it is not known */
	bool held; /* it will be used, or what is in it is not freed yet */
	uint64_t bytes;
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
	return !p->held && !pending_has(p->pending) && (!p->queue || queue_done(p->queue, p->tail));
}

/* Takes over what others, or no one, have idle. */
static uint64_t take_over(CUgraphExec exec, CUdevice dev, CUstream stream, uint64_t wanted)
{
	uint64_t got = 0;

	for (struct part *p = parts; p && got < wanted; p = p->next) {
		if (p->owner == exec || p->device != dev || p->held || (p->stream != stream && !idle(p)))
			continue;
		if (p->bytes > wanted - got) {
			if (!add_part(exec, dev, wanted - got))
				break;
			p->bytes -= wanted - got;
			return wanted;
		}
		*p = (struct part){.next = p->next, .owner = exec, .device = dev, .bytes = p->bytes};
		got += p->bytes;
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

CUresult exec_memory_map(CUgraphExec exec, CUstream stream)
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

/* What was pending is in the queue now. */
static void reached(struct pending *end)
{
	for (struct part *p = parts; p; p = p->next) {
		if (p->pending == end->number)
			p->tail = stream_ready(end->ctx, end->stream);
	}
}

static void end(struct pending *p)
{
	free(p);
}

static void used(CUgraphExec exec, CUcontext ctx, CUstream stream)
{
	struct pending *last = pending_before(ctx, stream) ? malloc(sizeof(*last)) : NULL;
	uint64_t number = 0;

	if (last) {
		*last = (struct pending){.run = reached, .end = end};
		pending_put(last, ctx, stream, &number);
	}
	for (struct part *p = parts; p; p = p->next) {
		if (p->owner == exec) {
			p->stream = stream;
			p->queue = queue_of(ctx);
			p->tail = stream_ready(ctx, stream);
			p->pending = number;
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

CUresult exec_memory_prepare(CUgraphExec exec, CUstream s)
{
	CUresult r;

	if (exec->flags & CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH)
		free_living(exec);
	if (lives(exec))
		return CUDA_ERROR_INVALID_VALUE; /* what its last launch left allocated is not freed yet */
	r = exec_memory_map(exec, s);
	if (!r)
		hold(exec, true);
	return r;
}

void exec_memory_launched(CUgraphExec exec, CUcontext ctx, CUstream s, bool done)
{
	if (done)
		leave_living(exec);
	hold(exec, lives(exec));
	used(exec, ctx, s);
}

void exec_memory_leave(CUgraphExec exec)
{
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

		if (p->device != dev || !idle(p)) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		memory[p->device].reserved -= p->bytes;
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
