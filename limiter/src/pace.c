#include "pace.h"

#include "bucket.h"
#include "capture.h"
#include "clock.h"
#include "cores.h"
#include "cost.h"
#include "device.h"
#include "hooks.h"
#include "sample.h"

/* Contexts and their cells, for a container with several GPUs: the handle in the
 * high 56 bits, the cell + 1 in the low 8, in one word that is read at once. */
enum { CONTEXTS = 16 };
static _Atomic uint64_t contexts[CONTEXTS];

static _Atomic uint64_t *place_of(CUcontext context)
{
	return &contexts[((uintptr_t)context >> 4 ^ (uintptr_t)context >> 12) % CONTEXTS];
}

/* The cell of a context; -1: it is not recorded, or its GPU is not granted. */
static int remembered(CUcontext context)
{
	/* Relaxed: no other data depends on the word. */
	uint64_t word = atomic_load_explicit(place_of(context), memory_order_relaxed);

	return word >> 8 == ((uint64_t)(uintptr_t)context & UINT64_MAX >> 8) ? (int)(word & 0xff) - 1 : -1;
}

static int cell_current(void)
{
	struct here here = { NULL, -1 };
	CUcontext context = NULL;

	if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
		return -1;
	int cell = remembered(context);
	if (__builtin_expect(cell >= 0, 1))
		return cell;
	if (device_here(&here) != CUDA_SUCCESS || here.cell < 0)
		return -1;
	atomic_store_explicit(place_of(here.context), (uint64_t)(uintptr_t)here.context << 8 | (uint64_t)(here.cell + 1),
	                      memory_order_relaxed);
	return here.cell;
}

/* The cell of the launch. With one granted GPU the driver need not be queried. */
static int cell_here(void)
{
	return __builtin_expect(atomic_load_explicit(&cores.cells, memory_order_relaxed) == 1, 1) ? 0 : cell_current();
}

static int cell_of_stream(CUstream stream)
{
	CUcontext context = NULL;

	if (atomic_load_explicit(&cores.cells, memory_order_relaxed) == 1)
		return 0;
	if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || !context)
		return -1;
	int cell = remembered(context);
	if (cell >= 0 || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return cell;
	cell = cell_current();
	REAL(cuCtxPopCurrent_v2)(&context);
	return cell;
}

void pace_forget_contexts(void)
{
	for (int i = 0; i < CONTEXTS; i++)
		atomic_store_explicit(&contexts[i], 0, memory_order_relaxed);
}

/* What this process has to do once a tick of the coarse clock, per cell. */
static struct local {
	_Atomic uint64_t tick;
	_Atomic uint64_t launches; /* not yet added to the bucket */
} locals[VGPU_MAX_DEVICES];

/* What this process charges, a second time: another program of the container can overwrite the
 * file's buckets. These buckets keep each process within the container's share nevertheless, and
 * the host corrects the sum of several processes. Normally the wait is for the file's buckets. */
static struct vgpu_bucket own[VGPU_MAX_DEVICES];

static void settle(struct vgpu_bucket *b, int cell, int64_t ns)
{
	bucket_settle(b, ns, cores_rate(cell));
	bucket_settle(&own[cell], ns, cores_rate(cell));
}

static void tick(struct vgpu_bucket *b, struct local *local, int cell, uint64_t now)
{
	/* Relaxed: two threads that see a new tick both refill, which is harmless. */
	atomic_store_explicit(&local->tick, now, memory_order_relaxed);
	bucket_refill(b, now, cores_rate(cell));
	bucket_refill(&own[cell], now, cores_rate(cell));
	atomic_fetch_add_explicit(&b->launches, atomic_exchange_explicit(&local->launches, 0, memory_order_relaxed),
	                          memory_order_relaxed);
	atomic_store_explicit(&b->last_launch, now, memory_order_relaxed);
}

static struct vgpu_bucket *bucket_of(int cell)
{
	/* Relaxed: the buckets are mapped before a cell is marked as limited. */
	struct vgpu_bucket *buckets = atomic_load_explicit(&cores.buckets, memory_order_relaxed);

	return buckets ? &buckets[cell] : NULL;
}

static void came(const struct sampled *sampled)
{
	struct vgpu_bucket *b = bucket_of(sampled->cell);
	int64_t more = 0;

	if (atomic_load_explicit(&sampled->cost->key, memory_order_relaxed) == sampled->key)
		more = cost_learn(sampled->cost, sampled->ns, clock_coarse_ns());
	if (b && more)
		settle(b, sampled->cell, more);
}

enum {
	BLIND_LAUNCHES = 3,        /* of one kernel before its first sample has finished */
	BLIND_NAP_NS = 50000,
	BLIND_WAIT_NS = 20000000,
	MEASURE_AGAIN_NS = 2000000,
	FLIGHT_NS = 300000000,     /* launches wait for work that is under way for longer, */
	FLIGHT_NAP_NS = 1000000,
	FLIGHT_WAIT_NS = 300000000, /* but not longer than this: it may wait for this launch */
	CHEAP_NS = 50000,          /* of shorter kernels only every eighth reads the clock; */
	CHEAP_LAUNCHES = 8,        /* an empty bucket is refilled in any case */
};

/* A launch of unknown cost is charged a small guess, and the rest when the first sample has
 * finished. Only BLIND_LAUNCHES can be under way without a sample; further ones wait, because an
 * asynchronous program could queue seconds of work within a millisecond. */
static uint64_t charge_blindly(struct cost *cost, CUstream stream)
{
	uint64_t waited = 0, ns, guess;

	for (;;) {
		bool under_way = sample_poll(stream, came);

		ns = atomic_load_explicit(&cost->ns, memory_order_relaxed);
		if (ns)
			return ns & ~COST_NEW;
		if (!under_way || waited >= BLIND_WAIT_NS ||
		    atomic_load_explicit(&cost->launches, memory_order_relaxed) < BLIND_LAUNCHES)
			break;
		clock_nap_ns(BLIND_NAP_NS);
		waited += BLIND_NAP_NS;
	}
	guess = cost_typical();
	return guess > waited ? guess : waited;
}

static void charge(struct pace *p, struct vgpu_bucket *b, uint64_t ns)
{
	uint64_t turn;

	p->charged = ns;
	if (!bucket_charge(b, ns, &turn))
		bucket_wait(b, p->cell, turn);
	if (!bucket_charge(&own[p->cell], ns, &turn))
		bucket_wait(&own[p->cell], p->cell, turn);
}

static void measured(struct pace *p, struct vgpu_bucket *b, struct cost *cost, uint64_t key, uint64_t ns)
{
	uint64_t due = atomic_load_explicit(&cost->due, memory_order_relaxed), now;

	if (!ns)
		ns = charge_blindly(cost, p->stream);
	else if (clock_coarse_ns() >= due)
		sample_poll(p->stream, came);
	if (cost_unsure(atomic_load_explicit(&cost->ns, memory_order_relaxed)))
		cost_note(cost, ns & ~COST_NEW);
	charge(p, b, ns & ~COST_NEW);
	now = clock_coarse_ns();
	due = atomic_load_explicit(&cost->due, memory_order_relaxed);
	if (now < due && atomic_load_explicit(&cost->ns, memory_order_relaxed))
		return;
	atomic_store_explicit(&cost->due, now + MEASURE_AGAIN_NS, memory_order_relaxed);
	p->sample = sample_begin(cost, key, p->cell, p->stream, now);
}

static struct vgpu_bucket *starts(struct pace *p, uint32_t limited, CUstream stream, int cell)
{
	p->charged = 0;
	p->sample = SAMPLE_NONE;
	p->stream = stream;
	p->cell = cell;
	if (cell < 0 || !(limited >> cell & 1) || (capture_any() && capture_of(stream)))
		return NULL;
	return bucket_of(cell);
}

static uint64_t count(struct local *local)
{
	/* Not an atomic addition: two threads may lose one count, which is only displayed. */
	uint64_t launches = atomic_load_explicit(&local->launches, memory_order_relaxed) + 1;

	atomic_store_explicit(&local->launches, launches, memory_order_relaxed);
	return launches;
}

/* Queued work runs even if the share has been reduced since. So this limits the work that is queued
 * in this stream. Other streams do not count: a kernel that waits for another process can block
 * them for long. This wait is for the GPU and not for the share, so it is not added to
 * `throttled`. It ends if the cell is not limited any more. */
static void keep_up(struct pace *p, uint64_t now)
{
	uint64_t until = clock_ns() + FLIGHT_WAIT_NS;

	while (sample_late(p->stream, now - FLIGHT_NS, came) && cores_limited() >> p->cell & 1 && clock_ns() < until)
		clock_nap_ns(FLIGHT_NAP_NS);
}

/* For all launches except cheap ones. */
static __attribute__((noinline)) void begin_with_clock(struct pace *p, struct vgpu_bucket *b, struct cost *cost,
                                                       uint64_t key, uint64_t ns)
{
	uint64_t now = clock_coarse_ns();

	if (atomic_load_explicit(&locals[p->cell].tick, memory_order_relaxed) != now) {
		tick(b, &locals[p->cell], p->cell, now);
		keep_up(p, now);
	}
	if (cost && (cost_unsure(ns) || now >= atomic_load_explicit(&cost->due, memory_order_relaxed)))
		measured(p, b, cost, key, ns);
	else
		charge(p, b, ns);
}

void pace_begin(struct pace *p, uint32_t limited, const void *what, uint64_t volume, CUstream stream)
{
	struct vgpu_bucket *b = starts(p, limited, stream, cell_here());

	if (!b)
		return;
	uint64_t key = cost_key(what, volume, p->cell);
	struct cost *cost = cost_find(key);
	uint64_t ns = cost ? atomic_load_explicit(&cost->ns, memory_order_relaxed) : cost_typical();
	uint64_t launches = count(&locals[p->cell]);
	if (__builtin_expect(ns - 1 < CHEAP_NS && launches % CHEAP_LAUNCHES, 1))
		charge(p, b, ns);
	else
		begin_with_clock(p, b, cost, key, ns);
}

void pace_begin_elsewhere(struct pace *p, uint32_t limited, const void *what, uint64_t volume, CUstream stream)
{
	struct vgpu_bucket *b = starts(p, limited, stream, cell_of_stream(stream));

	if (!b)
		return;
	struct cost *cost = cost_find(cost_key(what, volume, p->cell));
	uint64_t ns = cost ? atomic_load_explicit(&cost->ns, memory_order_relaxed) : 0;
	count(&locals[p->cell]);
	begin_with_clock(p, b, NULL, 0, ns ? ns & ~COST_NEW : cost_typical());
}

CUresult pace_end_slow(struct pace *p, CUresult result)
{
	if (p->sample != SAMPLE_NONE)
		sample_end(p->sample, p->stream, result == CUDA_SUCCESS);
	if (result != CUDA_SUCCESS && p->charged)
		settle(bucket_of(p->cell), p->cell, -(int64_t)p->charged);
	return result;
}
