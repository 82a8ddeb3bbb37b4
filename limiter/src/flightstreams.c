/* The streams that have launches without an event, by their names. */
#include "flightparts.h"

#include "hooks.h"

#define TAKING ((CUstream)UINTPTR_MAX)

CUcontext flight_current(void)
{
	CUcontext context = NULL;

	return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static bool is_default(CUstream name)
{
	return name == CU_STREAM_LEGACY || flight_own(name);
}

static CUcontext context_of(CUstream name)
{
	CUcontext context = NULL;

	return !is_default(name) && REAL(cuStreamGetCtx)(name, &context) == CUDA_SUCCESS ? context : flight_current();
}

void flight_context(struct flight *f, CUcontext context)
{
	CUcontext none = NULL;

	if (!atomic_compare_exchange_strong_explicit(&f->context, &none, context, memory_order_relaxed, memory_order_relaxed) && none != context)
		atomic_store_explicit(&f->context, FLIGHT_SEVERAL, memory_order_relaxed);
}

CUstream flight_stream_at(const struct flight *f, uintptr_t at)
{
	/* Acquire: pairs with flight_put(). */
	CUstream stream = atomic_load_explicit(&f->dirty[at], memory_order_acquire);

	return stream != TAKING ? stream : NULL;
}

CUcontext flight_context_at(const struct flight *f, uintptr_t at)
{
	return atomic_load_explicit(&f->contexts[at], memory_order_relaxed);
}

bool flight_is_noted(const struct flight *f, CUstream stream, uintptr_t home, CUcontext context)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		uintptr_t at = (home + i) % FLIGHT_STREAMS;

		if (flight_stream_at(f, at) == stream && (!context || flight_context_at(f, at) == context))
			return true;
	}
	return false;
}

void flight_put(struct flight *f, CUstream stream, uintptr_t home, CUcontext context)
{
	for (uintptr_t i = 0; i < FLIGHT_STREAMS; i++) {
		uintptr_t at = (home + i) % FLIGHT_STREAMS;
		CUstream none = NULL;

		if (!atomic_compare_exchange_strong_explicit(&f->dirty[at], &none, TAKING, memory_order_relaxed, memory_order_relaxed))
			continue;
		atomic_store_explicit(&f->contexts[at], context, memory_order_relaxed);
		/* Release: a thread that reads the stream reads its context. */
		atomic_store_explicit(&f->dirty[at], stream, memory_order_release);
		return;
	}
	/* There are more: what they run is seen with the others', or not at all for a moment. */
}

void flight_add(struct flight *f, CUstream stream)
{
	uintptr_t home = flight_home(stream);
	CUcontext here = is_default(stream) ? flight_current() : NULL;

	if (!flight_is_noted(f, stream, home, here))
		flight_put(f, stream, home, here ? here : context_of(stream));
}

void flight_drop(struct flight *f, uintptr_t at)
{
	f->noted[at].closing = false;
	f->noted[at].left = f->noted[at].since = 0;
	atomic_store_explicit(&f->dirty[at], NULL, memory_order_relaxed);
}

/* The legacy stream waits for all threads' own ones. */
bool flight_is_in(CUstream stream, CUcontext context, CUstream its, CUcontext in)
{
	if (stream && its != stream && !(stream == CU_STREAM_LEGACY && flight_own(its)))
		return false;
	return !context || !in || in == context;
}
