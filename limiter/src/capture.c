#include "capture.h"

#include "clock.h"
#include "hooks.h"

/* Number of open captures, so that launches need not query the driver. */
_Atomic unsigned captures_open;

/* The streams in which they were begun, but threads' own ones, which are not destroyed. NULL: a free place. */
enum { ORIGINS = 64 };
static _Atomic(CUstream) origins[ORIGINS];

/* Number of threads that make calls that would break a capture. */
static _Atomic unsigned measuring;

enum { PATIENCE_US = 2000, PAUSE_US = 20 };

bool capture_stay_away(void)
{
	/* seq_cst, as in begin(): each writes its own counter and then reads the other's, so that
	 * at least one of the two sees the other. */
	atomic_fetch_add(&measuring, 1);
	if (__builtin_expect(atomic_load(&captures_open) == 0, 1))
		return true;
	capture_leave();
	return false;
}

void capture_leave(void)
{
	atomic_fetch_sub(&measuring, 1);
}

int capture_relax(int mode)
{
	return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUresult capture_wait(CUstream stream)
{
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);
	CUresult result = REAL(cuStreamSynchronize)(stream);

	capture_relax(mode);
	return result;
}

bool capture_of(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!hook_exists(HOOK_cuStreamIsCapturing))
		return false; /* older than captures */
	/* The legacy stream can't be queried while another one is captured; a launch into it is
	 * then an error, which the driver returns. */
	return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Counted before the capture begins, so that the limiter makes no call during it. */
static void begin(void)
{
	atomic_fetch_add(&captures_open, 1);
	/* Bounded: a thread may be stopped, or missing after a fork, before it has left. */
	for (int waited = 0; atomic_load(&measuring) && waited < PATIENCE_US; waited += PAUSE_US)
		clock_nap_ns(PAUSE_US * 1000);
}

static void end(void)
{
	unsigned open = atomic_load(&captures_open);

	while (open && !atomic_compare_exchange_weak(&captures_open, &open, open - 1))
		;
}

/* Puts one in place of the other. False: there is none. seq_cst: the driver's call lies between. */
static bool replace(CUstream stream, CUstream by)
{
	for (int i = 0; i < ORIGINS; i++) {
		CUstream one = stream;

		if (atomic_load(&origins[i]) == stream && atomic_compare_exchange_strong(&origins[i], &one, by))
			return true;
	}
	return false;
}

static CUresult begun(CUresult result, CUstream stream)
{
	if (result != CUDA_SUCCESS)
		end();
	else if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD)
		replace(NULL, stream);
	return result;
}

void capture_destroyed(CUstream stream)
{
	if (capture_any() && stream && replace(stream, NULL))
		end();
}

/* Some errors end a capture and some don't: it has ended if the stream was captured before the
 * call and is not captured after it. */
static CUresult ended(CUresult result, bool captured, CUstream stream)
{
	if (captured && !capture_of(stream)) {
		replace(stream, NULL);
		end();
	}
	return result;
}

static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	begin();
	return begun(REAL(cuStreamBeginCapture)(stream), stream);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	begin();
	return begun(REAL(cuStreamBeginCapture_ptsz)(stream), stream);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	begin();
	return begun(REAL(cuStreamBeginCapture_v2)(stream, mode), stream);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	begin();
	return begun(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode), stream);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges,
                                     size_t count, int mode)
{
	begin();
	return begun(REAL(cuStreamBeginCaptureToGraph)(stream, graph, deps, edges, count, mode), stream);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges,
                                          size_t count, int mode)
{
	begin();
	return begun(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, deps, edges, count, mode), stream);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	bool captured = capture_of(stream);

	return ended(REAL(cuStreamEndCapture)(stream, graph), captured, stream);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	bool captured = capture_of(per_thread(stream));

	return ended(REAL(cuStreamEndCapture_ptsz)(stream, graph), captured, per_thread(stream));
}
