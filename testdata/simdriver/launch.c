/*
 * Launches: a kernel takes the whole card, or the whole MIG device, for its duration, after the work that is queued there
 * before it.
 */
#include "driver.h"

#define MAX_THREADS 1024u
#define QUEUE_NS 4000000000ull /* a launch blocks while its stream has more than this queued, as a full queue does */

struct launch {
	CUfunction f;
	unsigned grid[3], block[3];
	CUstream stream;
	void **params, **extra;
};

/* The next free span of that length, not before `from`. Any process may be doing the same: no lock. */
static uint64_t take_engine(struct engine *e, uint64_t from, uint64_t ns)
{
	uint64_t busy = atomic_load(&e->busy_until);
	uint64_t start;

	do {
		start = busy > from ? busy : from;
	} while (!atomic_compare_exchange_weak(&e->busy_until, &busy, start + ns));
	return start;
}

static uint64_t duration_of(CUfunction f, const struct card *c)
{
	if (f->duration_ns)
		return f->duration_ns;
	return process.kernel_ns_set ? process.kernel_ns : c->kernel_ns;
}

static void run(CUcontext ctx, CUstream s, uint64_t ns)
{
	struct instance *in = device_instance(ctx->device);
	struct engine *e = in ? &in->engine : &process.view.s->cards[ctx->card].engine;
	struct client_card *mine = &process.view.s->clients[process.view.self].cards[ctx->card];
	uint64_t now = now_ns();
	uint64_t ready = stream_ready(ctx, s);
	uint64_t start = take_engine(e, ready > now ? ready : now, ns);

	stream_advance(ctx, s, start + ns);
	busy_add(e->busy, start, start + ns);
	busy_add(mine->busy, start, start + ns);
	atomic_fetch_add(&e->busy_ns, ns);
	atomic_fetch_add(&mine->busy_ns, ns);
	atomic_fetch_add(&e->launches, 1);
	atomic_fetch_add(&mine->launches, 1);
}

static bool bad_shape(const struct launch *l)
{
	for (int i = 0; i < 3; i++) {
		if (!l->grid[i] || !l->block[i] || l->block[i] > MAX_THREADS)
			return true;
	}
	if (l->grid[0] > 0x7fffffffu || l->grid[1] > 65535 || l->grid[2] > 65535 || l->block[2] > 64)
		return true;
	return l->block[0] * l->block[1] > MAX_THREADS || l->block[0] * l->block[1] * l->block[2] > MAX_THREADS;
}

static CUresult launch(const struct launch *l)
{
	CUcontext ctx;
	CUstream s;
	uint64_t ready = 0;
	CUresult r = current_context(&ctx);

	if (r)
		return r;
	if (bad_shape(l) || (l->params && l->extra))
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	r = stream_find(l->stream, ctx, &s);
	if (!r && !object_is(OBJECT_FUNCTION, l->f))
		r = CUDA_ERROR_INVALID_HANDLE;
	if (!r) {
		ctx = s ? s->ctx : ctx;
		run(ctx, s, duration_of(l->f, &process.view.s->cards[ctx->card]));
		ready = stream_ready(ctx, s);
	}
	process_unlock();
	if (ready > QUEUE_NS)
		wait_until(ready - QUEUE_NS);
	return r;
}

#define LAUNCH_PARAMETERS                                                                                           \
	CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,          \
		unsigned int bz, unsigned int shared, CUstream stream, void **params
#define LAUNCH(stream_, extra_)                                                                            \
	(struct launch)                                                                                    \
	{                                                                                                  \
		.f = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .stream = (stream_), .params = params, \
		.extra = (extra_)                                                                          \
	}

CUresult cuLaunchKernel(LAUNCH_PARAMETERS, void **extra)
{
	struct launch l = LAUNCH(stream, extra);

	(void)shared;
	ENTER();
	return launch(&l);
}

CUresult cuLaunchKernel_ptsz(LAUNCH_PARAMETERS, void **extra)
{
	struct launch l = LAUNCH(per_thread(stream), extra);

	(void)shared;
	ENTER();
	return launch(&l);
}

CUresult cuLaunchCooperativeKernel(LAUNCH_PARAMETERS)
{
	struct launch l = LAUNCH(stream, NULL);

	(void)shared;
	ENTER();
	return launch(&l);
}

CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_PARAMETERS)
{
	struct launch l = LAUNCH(per_thread(stream), NULL);

	(void)shared;
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
