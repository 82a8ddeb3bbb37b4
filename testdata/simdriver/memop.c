/*
 * Streams that wait for values in memory and write them. Nothing shows when the host, another stream or another process has written, so
 * the memory is read again and again, after some time less often.
 */
#include "memop.h"

#include "allocation.h"
#include "pending.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_LOOK_NS 10000u
#define LAST_LOOK_NS 1000000u

struct put {
	struct pending p;
	bool reached;
	struct queue *queue;
	uint64_t tail;
	unsigned done;
	uint64_t pause;
	struct memops *ops;
};

static bool is_wide(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static bool is_wait(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

/* Where the host has it. NULL: nowhere, or it is not written yet. */
static void *place_of(CUdeviceptr ptr, bool write)
{
	const struct allocation *a = allocation_find(ptr);
	struct content *of = NULL;
	uint64_t offset;
	size_t left;

	if (a && (a->place == HOST || a->place == REGISTERED))
		return (void *)(uintptr_t)ptr;
	if (!memory_content(ptr, &of, &offset, &left) || !of || (write && !content_write(of)))
		return NULL;
	return of->at ? of->at + offset : NULL;
}

/* Documented: device pointers, aligned, and none to managed memory. */
static bool bad_address(CUdeviceptr ptr, size_t bytes)
{
	const struct allocation *a = allocation_find(ptr);

	if (ptr % bytes || (a && a->place == MANAGED))
		return true;
	return a && (a->place == HOST || a->place == REGISTERED) ? false : !memory_covers(ptr, bytes);
}

static CUresult check(const CUstreamBatchMemOpParams *op)
{
	switch (op->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		if (op->value.flags & ~(CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH))
			return CUDA_ERROR_INVALID_VALUE;
		if (op->value.flags & CU_STREAM_WAIT_VALUE_FLUSH)
			return CUDA_ERROR_NOT_SUPPORTED; /* as CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0 */
		break;
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		if (op->value.flags & ~CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_STREAM_MEM_OP_BARRIER:
		return op->other.flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return bad_address(op->value.address, is_wide(op) ? 8 : 4) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult memops_make(struct memops **out, CUcontext ctx, const CUstreamBatchMemOpParams *ops, unsigned count, unsigned flags)
{
	struct memops *m;

	if (count > MEMOPS_MAX || (count && !ops) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		CUresult r = check(&ops[i]);

		if (r)
			return r;
	}
	m = malloc(sizeof(*m) + count * sizeof(*ops));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct memops){.uses = 1, .ctx = ctx, .count = count};
	if (count)
		memcpy(m->op, ops, count * sizeof(*ops));
	*out = m;
	return CUDA_SUCCESS;
}

struct memops *memops_use(struct memops *m)
{
	if (m)
		m->uses++;
	return m;
}

void memops_unuse(struct memops *m)
{
	if (m && !--m->uses)
		free(m);
}

static uint64_t read_value(const void *at, bool wide)
{
	if (!at)
		return 0;
	return wide ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE) : __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
}

static bool has_come(const CUstreamBatchMemOpParams *op)
{
	bool wide = is_wide(op);
	uint64_t is = read_value(place_of(op->value.address, false), wide), want = wide ? op->value.value64 : op->value.value;

	switch (op->value.flags & 3) {
	case CU_STREAM_WAIT_VALUE_GEQ: /* of numbers that wrap around */
		return wide ? (int64_t)(is - want) >= 0 : (int32_t)(uint32_t)(is - want) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return is == want;
	case CU_STREAM_WAIT_VALUE_AND:
		return (is & want) != 0;
	default:
		return wide ? ~(is | want) != 0 : (uint32_t)~(is | want) != 0;
	}
}

static void write_value(const CUstreamBatchMemOpParams *op)
{
	void *at = place_of(op->value.address, true);

	if (at && is_wide(op))
		__atomic_store_n((uint64_t *)at, op->value.value64, __ATOMIC_RELEASE);
	else if (at)
		__atomic_store_n((uint32_t *)at, op->value.value, __ATOMIC_RELEASE);
}

static bool ready(struct pending *p, uint64_t *ask_again)
{
	struct put *b = (struct put *)p;

	if (!b->reached) {
		b->queue = queue_of(p->ctx);
		b->tail = stream_ready(p->ctx, p->stream);
		b->reached = true;
	}
	if (!pending_queue_done(b->queue, b->tail, ask_again))
		return false;
	for (; b->done < b->ops->count; b->done++) {
		const CUstreamBatchMemOpParams *op = &b->ops->op[b->done];

		if (is_wait(op) && !has_come(op)) {
			uint64_t next = now_ns() + b->pause;

			b->pause = b->pause < LAST_LOOK_NS ? b->pause * 5 / 4 : LAST_LOOK_NS;
			*ask_again = next < *ask_again ? next : *ask_again;
			return false;
		}
		if (op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
			write_value(op);
		b->pause = FIRST_LOOK_NS;
	}
	return true;
}

static void end(struct pending *p)
{
	memops_unuse(((struct put *)p)->ops);
	free(p);
}

CUresult memops_put(CUstream handle, struct memops *m)
{
	bool captured = false;
	CUcontext ctx;
	struct put *b;
	CUstream s;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = stream_find(handle, ctx, &s);
	if (!r)
		r = capture_check(s ? s->ctx : ctx, s, &captured);
	if (!r && captured) {
		r = capture_memops(s, m);
	} else if (!r && m->count) {
		b = malloc(sizeof(*b));
		if (b)
			*b = (struct put){.p = {.ready = ready, .end = end}, .pause = FIRST_LOOK_NS, .ops = memops_use(m)};
		r = b ? pending_put(&b->p, ctx, s, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
	}
	process_unlock();
	return r;
}

static CUresult put(CUstream handle, unsigned count, const CUstreamBatchMemOpParams *ops, unsigned flags)
{
	struct memops *m = NULL;
	CUcontext ctx;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	process_lock();
	r = memops_make(&m, ctx, ops, count, flags);
	process_unlock();
	if (!r)
		r = memops_put(handle, m);
	process_lock();
	memops_unuse(m);
	process_unlock();
	return r;
}

static CUresult put_one(CUstream handle, int operation, CUdeviceptr address, uint64_t value, unsigned flags)
{
	CUstreamBatchMemOpParams op = {.value = {.operation = operation, .address = address, .value64 = value, .flags = flags}};

	return put(handle, 1, &op, 0);
}

#define ONE(name, operation, type)                                                                \
	CUresult name(CUstream stream, CUdeviceptr address, type value, unsigned int flags)       \
	{                                                                                         \
		ENTER();                                                                          \
		return put_one(stream, operation, address, value, flags);                         \
	}                                                                                         \
	CUresult name##_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned int flags) \
	{                                                                                         \
		ENTER();                                                                          \
		return put_one(per_thread(stream), operation, address, value, flags);             \
	}

#define BATCH(name)                                                                                            \
	CUresult name(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)  \
	{                                                                                                      \
		ENTER();                                                                                       \
		return put(stream, count, ops, flags);                                                         \
	}                                                                                                      \
	CUresult name##_ptsz(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags) \
	{                                                                                                      \
		ENTER();                                                                                       \
		return put(per_thread(stream), count, ops, flags);                                             \
	}

ONE(cuStreamWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32, uint32_t)
ONE(cuStreamWaitValue32_v2, CU_STREAM_MEM_OP_WAIT_VALUE_32, uint32_t)
ONE(cuStreamWaitValue64, CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
ONE(cuStreamWaitValue64_v2, CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
ONE(cuStreamWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32, uint32_t)
ONE(cuStreamWriteValue32_v2, CU_STREAM_MEM_OP_WRITE_VALUE_32, uint32_t)
ONE(cuStreamWriteValue64, CU_STREAM_MEM_OP_WRITE_VALUE_64, cuuint64_t)
ONE(cuStreamWriteValue64_v2, CU_STREAM_MEM_OP_WRITE_VALUE_64, cuuint64_t)
BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)
