#include "sample.h"

#include "clock.h"

#include <stdatomic.h>

#include "capture.h"
#include "hooks.h"

enum { SAMPLES = 8, INTERVAL_NS = 1000000 };
enum state { FREE, BUSY, PENDING };

static struct sample {
	_Atomic uint32_t state; /* the thread that sets BUSY owns the other fields */
	CUcontext context;      /* of the events; NULL: there are none */
	CUevent start, stop;
	CUstream stream;
	_Atomic uint64_t sent;  /* when it became PENDING; also read by threads that do not own it, as a hint */
	struct sampled about;
} samples[SAMPLES];

static bool take(struct sample *s, uint32_t from)
{
	/* Acquire: the last owner's writes. Not a lock: no thread waits for it. */
	return atomic_load_explicit(&s->state, memory_order_relaxed) == from &&
	       atomic_compare_exchange_strong_explicit(&s->state, &from, BUSY, memory_order_acquire, memory_order_relaxed);
}

static void give(struct sample *s, uint32_t to)
{
	/* Release: pairs with take(). */
	atomic_store_explicit(&s->state, to, memory_order_release);
}

/* In the strictest mode an event query in any thread breaks a capture, even one that was begun
 * without the limiter. In relaxed mode this thread's queries do not. */
static int relaxed_mode(int mode)
{
	if (hook_exists(HOOK_cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

static CUcontext current(void)
{
	CUcontext context = NULL;

	return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static void drop_events(struct sample *s)
{
	if (s->context) {
		REAL(cuEventDestroy_v2)(s->start);
		REAL(cuEventDestroy_v2)(s->stop);
	}
	s->context = NULL;
}

static bool make_events(struct sample *s, CUcontext context)
{
	s->start = s->stop = NULL;
	if (REAL(cuEventCreate)(&s->start, 0) != CUDA_SUCCESS || !s->start)
		return false;
	if (REAL(cuEventCreate)(&s->stop, 0) != CUDA_SUCCESS || !s->stop) {
		REAL(cuEventDestroy_v2)(s->start);
		return false;
	}
	s->context = context;
	return true;
}

/* A free sample with events of this context, else one without events. */
static struct sample *take_free(CUcontext context)
{
	for (int i = 0; i < SAMPLES; i++) {
		if (!take(&samples[i], FREE))
			continue;
		if (samples[i].context == context)
			return &samples[i];
		give(&samples[i], FREE);
	}
	for (int i = 0; i < SAMPLES; i++) {
		if (!take(&samples[i], FREE))
			continue;
		drop_events(&samples[i]);
		if (make_events(&samples[i], context))
			return &samples[i];
		give(&samples[i], FREE);
		return NULL;
	}
	return NULL;
}

/* True: the sample has finished, or it never will. */
static bool done(struct sample *s, void (*came)(const struct sampled *))
{
	CUresult result = REAL(cuEventQuery)(s->stop);
	float ms = 0;

	if (result == CUDA_ERROR_NOT_READY)
		return false;
	if (result == CUDA_SUCCESS && REAL(cuEventElapsedTime)(&ms, s->start, s->stop) == CUDA_SUCCESS && ms >= 0) {
		s->about.ns = ms < 1e7f ? (uint64_t)((double)ms * 1e6) : UINT64_MAX;
		came(&s->about);
	}
	return true;
}

struct under_way {
	bool here; /* a sample of this stream */
	bool late; /* a sample of this stream that was sent before `since` */
};

static struct under_way poll(CUcontext context, CUstream stream, uint64_t since, void (*came)(const struct sampled *))
{
	struct under_way under_way = { 0 };

	for (int i = 0; i < SAMPLES; i++) {
		struct sample *s = &samples[i];

		if (!take(s, PENDING))
			continue;
		if (s->context == context && done(s, came)) {
			give(s, FREE);
			continue;
		}
		bool here = s->context == context && s->stream == stream;

		under_way.here |= here;
		under_way.late |= here && atomic_load_explicit(&s->sent, memory_order_relaxed) < since;
		give(s, PENDING);
	}
	return under_way;
}

static struct under_way poll_current(CUstream stream, uint64_t since, void (*came)(const struct sampled *))
{
	struct under_way under_way = { 0 };

	if (!capture_stay_away())
		return under_way;
	CUcontext context = current();
	if (context) {
		int mode = relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);

		under_way = poll(context, stream, since, came);
		relaxed_mode(mode);
	}
	capture_leave();
	return under_way;
}

bool sample_poll(CUstream stream, void (*came)(const struct sampled *))
{
	return poll_current(stream, 0, came).here;
}

bool sample_late(CUstream stream, uint64_t since, void (*came)(const struct sampled *))
{
	bool some = false;

	/* Relaxed: a cheap hint; poll() decides. */
	for (int i = 0; i < SAMPLES && !some; i++)
		some = atomic_load_explicit(&samples[i].state, memory_order_relaxed) == PENDING &&
		       atomic_load_explicit(&samples[i].sent, memory_order_relaxed) < since;
	return some && poll_current(stream, since, came).late;
}

/* About one sample per millisecond in total. For launches of unknown cost, as many as there are
 * places, because they are charged a guess. */
static bool its_time(const struct cost *cost, uint64_t now)
{
	static _Atomic uint64_t last;
	uint64_t before = atomic_load_explicit(&last, memory_order_relaxed);

	if (atomic_load_explicit(&cost->ns, memory_order_relaxed) && now - before < INTERVAL_NS)
		return false;
	/* Relaxed: two threads at once are two samples. */
	atomic_store_explicit(&last, now, memory_order_relaxed);
	return true;
}

static bool in_flight(CUcontext context, CUstream stream)
{
	for (int i = 0; i < SAMPLES; i++) {
		struct sample *s = &samples[i];

		if (!take(s, PENDING))
			continue;
		bool same = s->context == context && s->stream == stream;
		give(s, PENDING);
		if (same)
			return true;
	}
	return false;
}

static int begin(CUcontext context, CUstream stream)
{
	struct sample *s = in_flight(context, stream) || capture_of(stream) ? NULL : take_free(context);

	if (!s)
		return SAMPLE_NONE;
	if (REAL(cuEventRecord)(s->start, stream) == CUDA_SUCCESS)
		return (int)(s - samples);
	give(s, FREE);
	return SAMPLE_NONE;
}

int sample_begin(struct cost *cost, uint64_t key, int cell, CUstream stream, uint64_t now)
{
	int sample = SAMPLE_NONE;

	if (!its_time(cost, now) || !capture_stay_away())
		return SAMPLE_NONE;
	CUcontext context = current();
	if (context) {
		int mode = relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);

		sample = begin(context, stream);
		relaxed_mode(mode);
	}
	capture_leave();
	if (sample != SAMPLE_NONE) {
		samples[sample].stream = stream;
		samples[sample].about = (struct sampled){ .cost = cost, .key = key, .cell = cell };
	}
	return sample;
}

void sample_end(int sample, CUstream stream, bool launched)
{
	struct sample *s = &samples[sample];
	bool quiet = capture_stay_away();

	atomic_store_explicit(&s->sent, clock_coarse_ns(), memory_order_relaxed);
	give(s, quiet && launched && REAL(cuEventRecord)(s->stop, stream) == CUDA_SUCCESS ? PENDING : FREE);
	if (quiet)
		capture_leave();
}

void sample_drop_all(void)
{
	for (int i = 0; i < SAMPLES; i++) {
		struct sample *s = &samples[i];

		if (!take(s, FREE) && !take(s, PENDING))
			continue;
		drop_events(s);
		give(s, FREE);
	}
}
