/* Launches: a kernel is put into the process's queue on the GPU, where it takes its time. See queue.c and engine.c. */
#include "launch.h"

#include "green.h"
#include "pending.h"

#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 1024u
#define LONGEST_NS (1ull << 50) /* 13 days: for the tests, a kernel that never ends */

/* One of 64 bits; 0: there is none. */
static uint64_t parameter(CUfunction f, unsigned number, void **params, void **extra)
{
	const char *buffer = NULL;
	size_t size = 0;
	uint64_t value = 0;

	for (; extra && *extra; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = *(size_t *)extra[1];
	}
	if (number >= f->param_count || f->params[number].bytes != sizeof(value))
		return 0;
	if (params)
		memcpy(&value, params[number], sizeof(value));
	else if (buffer && size >= f->params[number].offset + sizeof(value))
		memcpy(&value, buffer + f->params[number].offset, sizeof(value));
	return value;
}

static uint64_t kernel_time(CUfunction f, unsigned gpu, uint64_t blocks, void **params, void **extra)
{
	const struct duration *d = &f->duration;
	uint64_t ns = d->parameter ? parameter(f, d->parameter - 1, params, extra) : 0;

	if (!d->ns && !d->block_ns && !d->parameter)
		return process.kernel_ns_set ? process.kernel_ns : process.view.s->gpus[gpu].kernel_ns;
	if (ns > LONGEST_NS || d->ns > LONGEST_NS || (d->block_ns && blocks > LONGEST_NS / d->block_ns))
		return LONGEST_NS;
	ns += d->ns + d->block_ns * blocks;
	return ns < LONGEST_NS ? ns : LONGEST_NS;
}

unsigned width_of(CUdevice dev, uint64_t multiprocessors)
{
	const struct instance *in = device_instance(dev);
	uint64_t all = in ? in->profile.sm_count : process.view.s->gpus[process.devices[dev].gpu].sm_count;

	return multiprocessors < all ? (unsigned)((multiprocessors * FULL_WIDTH + all - 1) / all) : FULL_WIDTH;
}

/* A block has a multiprocessor for itself as long as there are some: they are spread over all. */
struct load kernel_load(CUfunction f, CUdevice dev, const unsigned grid[3], void **params, void **extra)
{
	uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];

	return (struct load){kernel_time(f, process.devices[dev].gpu, blocks, params, extra), width_of(dev, blocks)};
}

/* Room for one more, or what must be done before there is some: a quarter of the queue, so as not to wake for each. */
static uint64_t full(struct queue *q, struct backlog *b)
{
	uint64_t depth = process.view.s->gpus[q->gpu].queue_depth;

	depth = depth < 1 ? 1 : depth > MAX_QUEUE ? MAX_QUEUE : depth;
	if (b->count < depth || queue_done(q, b->tails[(b->count - depth) % MAX_QUEUE]))
		return 0;
	return b->tails[(b->count - depth + depth / 4) % MAX_QUEUE];
}

/* When a kernel can begin that is put into the stream when all else in it is done at that moment. */
static uint64_t begins(struct queue *q, uint64_t ready, uint64_t kernel_tail)
{
	const struct gpu *c = &process.view.s->gpus[q->gpu];
	uint64_t ns = 0;

	if (c->gap_ns || c->start_ns)
		ns = queue_done(q, kernel_tail) ? c->start_ns : c->gap_ns;
	return ns ? queue_put(q, ready, (struct load){.ns = ns}, 0) : ready;
}

uint64_t stream_put_load(CUcontext ctx, CUstream s, struct load load, unsigned launches)
{
	CUgreenCtx green = green_of(s);
	struct queue *q = queue_of(s ? s->ctx : ctx);
	uint64_t ready = stream_ready(ctx, s), *kernel_tail = s ? &s->kernel_tail : &ctx->kernel_tail, tail;

	if (green) {
		load = green_load(green, load);
		ready = green_ready(green, ready, load);
	}
	if (launches)
		ready = begins(q, ready, *kernel_tail);
	tail = queue_put(q, ready, load, launches);
	*kernel_tail = tail;
	if (green)
		green_advance(green, tail, load);
	stream_advance(ctx, s, tail);
	return tail;
}

/* Process lock held. *wait_for: nothing was done, as the stream is full; try again when the queue *q has come to that. */
static CUresult put(CUcontext ctx, CUstream s, struct load load, unsigned launches, struct queue **q, uint64_t *wait_for)
{
	struct backlog *b = s ? &s->backlog : &ctx->backlog;

	if (pending_before(ctx, s))
		return pending_put_load(ctx, s, load, launches);
	*q = queue_of(s ? s->ctx : ctx);
	if (!b->tails)
		b->tails = calloc(MAX_QUEUE, sizeof(*b->tails));
	if (!b->tails)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*wait_for = full(*q, b);
	if (*wait_for)
		return CUDA_SUCCESS;
	b->tails[b->count++ % MAX_QUEUE] = stream_put_load(ctx, s, load, launches);
	return CUDA_SUCCESS;
}

CUresult stream_run(CUstream handle, struct load load, unsigned launches)
{
	CUcontext ctx;
	CUstream s;
	struct queue *q = NULL;
	uint64_t wait_for = 0;
	CUresult r = current_context(&ctx);

	while (!r) {
		process_lock();
		r = stream_find(handle, ctx, &s);
		if (!r)
			r = put(ctx, s, load, launches, &q, &wait_for);
		process_unlock();
		if (!wait_for)
			break;
		queue_wait(q, wait_for);
	}
	return r;
}

bool bad_shape(const struct launch *l)
{
	for (int i = 0; i < 3; i++) {
		if (!l->grid[i] || !l->block[i] || l->block[i] > MAX_THREADS)
			return true;
	}
	if (l->grid[0] > 0x7fffffffu || l->grid[1] > 65535 || l->grid[2] > 65535 || l->block[2] > 64)
		return true;
	return l->block[0] * l->block[1] > MAX_THREADS || l->block[0] * l->block[1] * l->block[2] > MAX_THREADS;
}

static CUresult capture(CUstream s, CUfunction f, const struct launch *l)
{
	CUDA_KERNEL_NODE_PARAMS p = {
		.func = f, .gridDimX = l->grid[0], .gridDimY = l->grid[1], .gridDimZ = l->grid[2], .blockDimX = l->block[0],
		.blockDimY = l->block[1], .blockDimZ = l->block[2], .sharedMemBytes = l->shared, .kernelParams = l->params,
		.extra = l->extra,
	};

	return capture_kernel(s, &p);
}

CUresult launch(const struct launch *l)
{
	CUcontext ctx;
	CUstream s;
	struct queue *q = NULL;
	uint64_t wait_for = 0;
	struct load load = {0};
	CUfunction f = l->f;
	bool captured = false;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (bad_shape(l) || (l->params && l->extra))
		return CUDA_ERROR_INVALID_VALUE;
	pending_wait_room(l->stream);
	while (!r) {
		process_lock();
		if (object_is(OBJECT_KERNEL, f)) {
			process_unlock();
			f = kernel_function(f);
			process_lock();
		}
		r = stream_find(l->stream, ctx, &s);
		if (!r && !object_is(OBJECT_FUNCTION, f))
			r = CUDA_ERROR_INVALID_HANDLE;
		if (!r)
			r = capture_check(s ? s->ctx : ctx, s, &captured);
		if (!r)
			r = runtime_launch(f->module);
		if (!r)
			load = kernel_load(f, s ? s->ctx->device : ctx->device, l->grid, l->params, l->extra);
		if (!r)
			r = captured ? capture(s, f, l) : put(ctx, s, load, 1, &q, &wait_for);
		process_unlock();
		if (!wait_for)
			break;
		queue_wait(q, wait_for);
	}
	return r;
}

#define LAUNCH_PARAMETERS                                                                                           \
	CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,          \
		unsigned int bz, unsigned int shared, CUstream stream, void **params
#define LAUNCH(stream_, extra_)                                                                            \
	(struct launch)                                                                                    \
	{                                                                                                  \
		.f = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared, .stream = (stream_), .params = params, \
		.extra = (extra_)                                                                          \
	}

CUresult cuLaunchKernel(LAUNCH_PARAMETERS, void **extra)
{
	struct launch l = LAUNCH(stream, extra);

	ENTER();
	return launch(&l);
}

CUresult cuLaunchKernel_ptsz(LAUNCH_PARAMETERS, void **extra)
{
	struct launch l = LAUNCH(per_thread(stream), extra);

	ENTER();
	return launch(&l);
}

CUresult cuLaunchCooperativeKernel(LAUNCH_PARAMETERS)
{
	struct launch l = LAUNCH(stream, NULL);

	ENTER();
	return launch(&l);
}

CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_PARAMETERS)
{
	struct launch l = LAUNCH(per_thread(stream), NULL);

	ENTER();
	return launch(&l);
}

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, void **params, void **extra, bool twin)
{
	struct launch l = {.f = f, .params = params, .extra = extra};

	if (!c || (c->numAttrs && !c->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	l.stream = twin ? per_thread(c->hStream) : c->hStream;
	l.grid[0] = c->gridDimX;
	l.grid[1] = c->gridDimY;
	l.grid[2] = c->gridDimZ;
	l.block[0] = c->blockDimX;
	l.block[1] = c->blockDimY;
	l.block[2] = c->blockDimZ;
	l.shared = c->sharedMemBytes;
	return launch(&l);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	ENTER();
	return launch_ex(config, f, params, extra, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	ENTER();
	return launch_ex(config, f, params, extra, true);
}
