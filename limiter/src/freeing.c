#include "freeing.h"

#include "capture.h"
#include "charge.h"
#include "clock.h"
#include "green.h"
#include "hooks.h"
#include "process.h"

enum state { FREE, BUSY, PENDING };

enum { PATIENCE_US = 10000000, PAUSE_US = 50 };

static bool take(struct freed *f, uint32_t from)
{
	/* Acquire: the last owner's writes. Not a lock: no thread waits for it. */
	return atomic_load_explicit(&f->state, memory_order_relaxed) == from &&
	       atomic_compare_exchange_strong_explicit(&f->state, &from, BUSY, memory_order_acquire, memory_order_relaxed);
}

static void give(struct freed *f, uint32_t to)
{
	/* Release: pairs with take(). */
	atomic_store_explicit(&f->state, to, memory_order_release);
}

/* After the charge was given back, so that a thread that needs the bytes waits for it. */
static void leave(struct freeing *all, struct freed *f)
{
	give(f, FREE);
	atomic_fetch_sub_explicit(&all->count, 1, memory_order_release);
}

static struct freed *take_free(struct freeing *all)
{
	for (int i = 0; i < FREEING; i++)
		if (take(&all->places[i], FREE))
			return &all->places[i];
	return NULL;
}

/* Has the driver end what it can free in a context. */
static void settle(CUcontext context)
{
	size_t free, total;

	if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return; /* it has ended, and its memory with it */
	REAL(cuMemGetInfo_v2)(&free, &total);
	REAL(cuCtxPopCurrent_v2)(&context);
}

static CUcontext context_of(CUstream stream)
{
	CUcontext context = NULL;
	bool named = (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD;
	CUresult result = named ? REAL(cuStreamGetCtx)(stream, &context) : REAL(cuCtxGetCurrent)(&context);

	return result == CUDA_SUCCESS ? context : NULL;
}

/* The event that follows the free, of the stream's context. NULL: there is none. An event of another context than the
 * memory's would end with that one, and its handle could become another's; for green ones see freeing_context_ends(). */
static CUevent event_in(struct process *p, CUstream stream, CUcontext owner, CUcontext *context)
{
	CUevent event = NULL;

	*context = context_of(stream);
	if (!*context || green_owner(p, *context) != owner || REAL(cuCtxPushCurrent_v2)(*context) != CUDA_SUCCESS)
		return NULL;
	if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		event = NULL;
	if (event && REAL(cuEventRecord)(event, stream) != CUDA_SUCCESS) {
		REAL(cuEventDestroy_v2)(event);
		event = NULL;
	}
	REAL(cuCtxPopCurrent_v2)(context);
	return event;
}

/* Without a place of its own an entry is added to one of the same stream, and the event of that one is moved on. */
static bool join_place(struct freeing *all, const struct ledger_entry *entry, CUstream stream)
{
	for (int i = 0; i < FREEING && stream != CU_STREAM_PER_THREAD; i++) { /* that one differs by thread */
		struct freed *f = &all->places[i];

		if (!take(f, PENDING))
			continue;
		bool joins = f->stream == stream && f->event && f->entry.context == entry->context && f->entry.kind == entry->kind &&
		             f->entry.cell == entry->cell && !((f->entry.size | entry->size) & ~LEDGER_BYTES) &&
		             REAL(cuEventRecord)(f->event, stream) == CUDA_SUCCESS;
		if (joins) {
			f->entry.size += entry->size;
			f->entry.stamp = entry->stamp > f->entry.stamp ? entry->stamp : f->entry.stamp;
		}
		give(f, PENDING);
		if (joins)
			return true;
	}
	return false;
}

/* If the stream fails, its context keeps the memory, and the charge remains. */
static bool wait_now(struct process *p, const struct ledger_entry *entry, CUstream stream)
{
	if (capture_wait(stream) != CUDA_SUCCESS)
		return false;
	settle((CUcontext)(uintptr_t)entry->context);
	discharge(p, entry);
	return true;
}

/* Fills a place, or waits. */
static void fill(struct process *p, struct freed *f, const struct ledger_entry *entry, CUstream stream)
{
	CUcontext context;
	CUevent event = event_in(p, stream, (CUcontext)(uintptr_t)entry->context, &context);

	if (!event && wait_now(p, entry, stream)) {
		leave(&p->freeing, f);
		return;
	}
	f->entry = *entry;
	f->event = event;
	f->context = context;
	f->stream = stream;
	give(f, PENDING);
}

void freeing_add(struct process *p, const struct ledger_entry *entry, CUstream stream)
{
	struct freeing *all = &p->freeing;
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);

	freeing_collect(p);
	/* Relaxed: before the place is taken, so that the count is never too small. */
	atomic_fetch_add_explicit(&all->count, 1, memory_order_relaxed);
	struct freed *f = take_free(all);
	if (f)
		fill(p, f, entry, stream);
	else if (!join_place(all, entry, stream))
		wait_now(p, entry, stream);
	if (!f)
		atomic_fetch_sub_explicit(&all->count, 1, memory_order_release);
	capture_relax(mode);
}

/* What one thread has found: the places that are done, and whether others will be. A place with
 * another error stays until its context ends. */
struct found {
	uint64_t done[FREEING / 64];
	bool any, waits;
};

static void look(struct freeing *all, struct found *found)
{
	for (int i = 0; i < FREEING; i++) {
		struct freed *f = &all->places[i];

		if (!take(f, PENDING)) {
			found->waits |= atomic_load_explicit(&f->state, memory_order_relaxed) == BUSY;
			continue;
		}
		CUresult result = f->event ? REAL(cuEventQuery)(f->event) : CUDA_ERROR_INVALID_VALUE;
		found->waits |= result == CUDA_ERROR_NOT_READY;
		if (result == CUDA_SUCCESS) {
			found->done[i / 64] |= (uint64_t)1 << i % 64;
			found->any = true;
		} else
			give(f, PENDING);
	}
}

static void end(struct process *p, const struct found *found)
{
	struct freeing *all = &p->freeing;
	uint64_t settled = 0;

	for (int i = 0; i < FREEING; i++) {
		struct freed *f = &all->places[i];

		if (!(found->done[i / 64] & (uint64_t)1 << i % 64))
			continue;
		if (f->entry.context != settled)
			settle((CUcontext)(uintptr_t)f->entry.context);
		settled = f->entry.context;
		REAL(cuEventDestroy_v2)(f->event);
		discharge(p, &f->entry);
		leave(all, f);
	}
}

static struct found collect(struct process *p)
{
	struct found found = { 0 };
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);

	look(&p->freeing, &found);
	if (found.any)
		end(p, &found);
	capture_relax(mode);
	return found;
}

bool freeing_collect(struct process *p)
{
	return freeing_any(&p->freeing) && collect(p).any;
}

/* A device memory allocation may wait for the GPU, as NVIDIA documents. Bounded, because what
 * comes before the free may itself wait for this thread. */
bool freeing_wait(struct process *p)
{
	uint64_t until = clock_us() + PATIENCE_US;

	while (freeing_any(&p->freeing)) {
		struct found found = collect(p);

		if (found.any || !found.waits || clock_us() > until)
			return found.any;
		clock_sleep_us(PAUSE_US);
	}
	return false;
}

void freeing_context_ends(struct process *p, CUcontext context)
{
	int mode = capture_relax(CU_STREAM_CAPTURE_MODE_RELAXED);

	for (int i = 0; i < FREEING && freeing_any(&p->freeing); i++) {
		struct freed *f = &p->freeing.places[i];

		if (!take(f, PENDING))
			continue;
		if (f->context != context || !f->event) {
			give(f, PENDING);
			continue;
		}
		bool done = REAL(cuEventSynchronize)(f->event) == CUDA_SUCCESS;
		REAL(cuEventDestroy_v2)(f->event);
		f->event = NULL;
		if (done) {
			settle((CUcontext)(uintptr_t)f->entry.context);
			discharge(p, &f->entry);
			leave(&p->freeing, f);
		} else
			give(f, PENDING);
	}
	capture_relax(mode);
}

void freeing_context_ended(struct process *p, CUcontext context, uint64_t stamp)
{
	for (int i = 0; i < FREEING && freeing_any(&p->freeing); i++) {
		struct freed *f = &p->freeing.places[i];

		if (!take(f, PENDING))
			continue;
		if (f->entry.context == (uintptr_t)context && f->entry.stamp <= stamp) {
			discharge(p, &f->entry);
			leave(&p->freeing, f);
		} else
			give(f, PENDING);
	}
}
