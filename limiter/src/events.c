/* Events of the program: what it records, and what it asks for (recorded.c). An answer must be of the record that is known here,
 * also if threads record the same event at once. */
#include "capture.h"
#include "clock.h"
#include "cores.h"
#include "hooks.h"
#include "pool.h"
#include "turnends.h"
#include "turnstate.h"

/* A thread that begins a capture waits for a record for a little longer. */
static const uint64_t RECORD_NS = 1000000;

static _Atomic uint64_t begun; /* records */
static _Atomic unsigned recording;
static _Atomic bool unknown_records; /* some may have been made that are not seen here: events show nothing any more */

void events_unknown(void)
{
	atomic_store(&unknown_records, true);
}

struct recording {
	uint64_t number, at;
	bool used, single, apart;
	struct turn *turn; /* with a mark for it; NULL: none */
	int mark;
};

/* What is known of the event is of an earlier record. Without a lock: the driver's call follows. */
static void forget(CUevent event)
{
	for (struct turn *t = turn_next_known(NULL); t; t = turn_next_known(t))
		flight_forget_event(turn_flight(t), event);
}

static void mark(struct recording *r, CUevent event, CUstream stream)
{
	for (struct turn *t = turn_next_known(NULL); t && !r->turn; t = turn_next_known(t)) {
		if (!turn_lock(t))
			continue; /* the launches stay without a mark */
		turn_begin(t, r->at);
		r->mark = flight_record_begin(turn_flight(t), event, flight_name(stream), r->number, r->at);
		r->turn = r->mark >= 0 ? t : NULL;
		turn_unlock(t);
	}
}

static struct recording begin(CUevent event, CUstream stream)
{
	if (!turn_ever_used() || atomic_load(&unknown_records))
		return (struct recording){ .used = false };
	/* seq_cst, as in end() and flight.theirs: of two records at once each sees the other, or what it knows of the event. */
	struct recording r = { .number = atomic_fetch_add(&begun, 1) + 1, .at = clock_ns(), .used = true };
	r.single = atomic_fetch_add(&recording, 1) == 0;
	r.apart = capture_stay_away();
	forget(event);
	if (r.single && r.apart)
		mark(&r, event, stream);
	return r;
}

static CUresult end(const struct recording *r, CUresult result)
{
	if (!r->used)
		return result;
	bool known = result == CUDA_SUCCESS && r->turn && clock_ns() - r->at < RECORD_NS;
	if (r->apart)
		capture_leave();
	/* One that begins after this forgets the event. */
	if (known && atomic_load(&begun) == r->number && turn_lock(r->turn)) {
		flight_record_end(turn_flight(r->turn), r->mark, r->number);
		turn_unlock(r->turn);
	}
	atomic_fetch_sub(&recording, 1);
	return result;
}

#define RECORD(name, parameters, arguments, stream)                             \
	CUresult name parameters                                                \
	{                                                                       \
		struct recording r = begin(event, stream);                      \
		return end(&r, REAL(name) arguments);                           \
	}
#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
RECORD(cuEventRecord, (CUevent event, CUstream stream), (event, stream), stream)
RECORD(cuEventRecord_ptsz, (CUevent event, CUstream stream), (event, stream), OWN(stream))
RECORD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags), stream)
RECORD(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags), OWN(stream))

/* The driver may give the handle to another event, and of one that was never recorded the driver answers that it has happened.
 * It counts as a record: one at once does not count. */
#define DESTROY(name)                                                           \
	CUresult name(CUevent event)                                            \
	{                                                                       \
		if (turn_ever_used()) {                                         \
			atomic_fetch_add(&begun, 1);                            \
			forget(event);                                          \
		}                                                               \
		return REAL(name)(event);                                       \
	}
DESTROY(cuEventDestroy)
DESTROY(cuEventDestroy_v2)

static void answered(CUevent event, uint64_t asked, bool waited)
{
	turn_answered(atomic_load(&unknown_records) ? NULL : event, asked, waited);
}

CUresult cuEventSynchronize(CUevent event)
{
	bool announced = __builtin_expect(cores_limited() != 0, 0);

	if (announced)
		turn_wait_begin();
	uint64_t asked = flight_asked();
	CUresult result = REAL(cuEventSynchronize)(event);
	if (announced && result == CUDA_SUCCESS)
		answered(event, asked, true);
	if (announced)
		turn_wait_end();
	pools_may_have_shrunk();
	return result;
}

CUresult cuEventQuery(CUevent event)
{
	if (__builtin_expect(cores_limited() == 0, 1))
		return REAL(cuEventQuery)(event);
	uint64_t asked = flight_asked();
	CUresult result = REAL(cuEventQuery)(event);
	if (result == CUDA_SUCCESS)
		answered(event, asked, false);
	else if (result == CUDA_ERROR_NOT_READY)
		turn_saw_work();
	return result;
}

/* Records that are not seen here: of contexts, and by other processes. And by graphs (graph.c), launches (launch.c), and functions
 * of a newer driver (procaddr.c). */
#define UNKNOWN(name, parameters, arguments)                                    \
	CUresult name parameters                                                \
	{                                                                       \
		events_unknown();                                               \
		return REAL(name) arguments;                                    \
	}
UNKNOWN(cuCtxRecordEvent, (CUcontext ctx, CUevent event), (ctx, event))
UNKNOWN(cuGreenCtxRecordEvent, (void *ctx, CUevent event), (ctx, event))
UNKNOWN(cuIpcGetEventHandle, (CUipcEventHandle *handle, CUevent event), (handle, event))
UNKNOWN(cuIpcOpenEventHandle, (CUevent *event, CUipcEventHandle handle), (event, handle))
