/* The work of this process that is under way on a GPU: launches, and the events behind them. */
#ifndef GPUSLICE_FLIGHT_H
#define GPUSLICE_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "lock.h"

/* The first FLIGHT_OWN marks are never for events of the program. */
enum { FLIGHT_MARKS = 128, FLIGHT_OWN = 32, FLIGHT_STREAMS = 32 };

/* The shortest launch that is counted with, and what passes between two looks. */
#define FLIGHT_LEAST_NS ((int64_t)500)
#define FLIGHT_QUOTA_NS ((int64_t)250000)

struct mark { /* an event, and the launches in front of it that no other mark has */
	CUevent event;  /* the limiter's; NULL: none yet */
	uint64_t serial; /* of its record: later ones are greater */
	uint64_t record; /* which call of the program that was */
	uint64_t counts_after; /* what the program sees of its event counts if it asked after that; 0: it does not count */
	CUcontext context;
	CUstream stream; /* its name; NULL: it has been destroyed */
	uint64_t since, sent; /* the first launch was after `since`, the last one before `sent` */
	uint64_t seen;        /* when it was last seen to be under way; 0: never */
	uint64_t ns, key, launches;
	bool pending;  /* they have not ended */
	bool recorded; /* `event` is behind them */
	bool unknown; /* how long it takes */
};

struct flight {
	/* The fast path's words, relaxed, used without the turn's lock. */
	_Atomic int64_t quota;      /* ns that can be launched without a look */
	_Atomic uint64_t passed;    /* ns of launches that passed without a look and beyond the quota */
	_Atomic uint64_t launches;  /* a count; two threads may lose one */
	_Atomic uint64_t key;       /* of the launches without a mark; 0: none; FLIGHT_MIXED: several */
	_Atomic(CUcontext) context; /* the only one so far; NULL: none; FLIGHT_SEVERAL */
	_Atomic(CUstream) dirty[FLIGHT_STREAMS]; /* names of streams with launches without a mark; NULL: none */
	_Atomic(CUcontext) contexts[FLIGHT_STREAMS]; /* theirs, or NULL */

	/* Of the marks, the program's; NULL: none, or it has been recorded again or destroyed. Set under the lock, cleared without. */
	_Atomic(CUevent) theirs[FLIGHT_MARKS];

	/* Under the turn's lock. */
	uint64_t pending[FLIGHT_MARKS / 64]; /* the same of all marks, as bits */
	struct mark marks[FLIGHT_MARKS];
	struct {
		bool closing;   /* its context may be ending: nothing can be recorded in it */
		uint64_t left;  /* since then no event could be recorded; 0: never */
		uint64_t since; /* when it was first left to the program's events; 0: never */
	} noted[FLIGHT_STREAMS]; /* of `dirty` */
	int64_t granted;        /* what the quota was when it was granted */
	uint64_t base;          /* ns that were launched before */
	uint64_t marked;        /* ns in front of marks, of all that were launched */
	uint64_t counted;       /* launches at the last mark */
	uint64_t since;         /* when that was, or the first launch since */
	uint64_t begin;         /* there is work since; 0: there is none */
	uint64_t last_done;     /* when the last work ended, as far as known */
	bool unknown;           /* one of the launches without a mark takes an unknown time */
	int singly;             /* so many launches more get a mark of their own */
	uint64_t shown;         /* when an event of the program last showed an end */
	bool shared;            /* known durations stay: others' work is under way, or launches wait for looks */
};

#define FLIGHT_MIXED UINT64_MAX
#define FLIGHT_SEVERAL ((CUcontext)UINTPTR_MAX)

/* The name of a stream: its handle, CU_STREAM_LEGACY, or for a thread's own default stream that thread. The driver knows
 * that stream only in its own thread. */
static inline bool flight_own(CUstream name)
{
	return (uintptr_t)name % 16 == (uintptr_t)CU_STREAM_PER_THREAD; /* a handle is an aligned address */
}

static inline CUstream flight_name(CUstream stream)
{
	if (stream == CU_STREAM_PER_THREAD)
		return (CUstream)(uintptr_t)(lock_self() | (uintptr_t)CU_STREAM_PER_THREAD);
	return stream ? stream : CU_STREAM_LEGACY;
}

struct under_way {
	uint64_t launches, ns; /* behind which an event is still to happen */
	uint64_t oldest;       /* when the oldest of them was sent */
	int marks;             /* of all streams */
	bool unknown; /* how long one of them takes */
};

/* There is a context; FLIGHT_SEVERAL: its handle is not known. */
void flight_context(struct flight *flight, CUcontext context);
/* Notes a launch into a stream; after the driver's call. Here and below a stream is given by its name. */
void flight_add(struct flight *flight, CUstream stream);
static inline void flight_launched(struct flight *flight, uint64_t key, CUstream stream)
{
	uint64_t had = atomic_load_explicit(&flight->key, memory_order_relaxed);
	uintptr_t at = (uintptr_t)stream;

	atomic_store_explicit(&flight->launches, atomic_load_explicit(&flight->launches, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
	if (__builtin_expect(had != key, 0))
		atomic_store_explicit(&flight->key, had ? FLIGHT_MIXED : key, memory_order_relaxed);
	at = (at >> 4 ^ at >> 10 ^ at) % FLIGHT_STREAMS;
	/* Each context has default streams of the same names. */
	if (__builtin_expect(atomic_load_explicit(&flight->dirty[at], memory_order_relaxed) != stream ||
	                     atomic_load_explicit(&flight->context, memory_order_relaxed) == FLIGHT_SEVERAL, 0))
		flight_add(flight, stream);
}

/* Counts a launch of ns that passes because no look is possible; 0: it is not known how long it takes. */
static inline void flight_pass(struct flight *flight, uint64_t ns)
{
	atomic_fetch_add_explicit(&flight->passed, ns ? ns : (uint64_t)FLIGHT_QUOTA_NS, memory_order_relaxed);
}

/* Before the event is recorded elsewhere, or destroyed: it shows nothing any more. */
void flight_forget_event(struct flight *flight, CUevent event);

/* All below: under the turn's lock. */

/* What was launched, in ns as far as known: in all, and since the last event; and whether there is a
 * stream without an event behind its launches. */
uint64_t flight_total(const struct flight *flight);
uint64_t flight_loose(const struct flight *flight);
bool flight_any_loose(const struct flight *flight);
bool flight_idle(const struct flight *flight);
/* Counts a launch of ns, and permits launches of `quota` ns without a look. */
void flight_permit(struct flight *flight, uint64_t ns, int64_t quota, uint64_t now);
/* Looks which events have happened. Work of other streams than this one that does not end for long does
 * not count: it may wait for another process. NULL: no stream. */
struct under_way flight_poll(struct flight *flight, CUstream stream, uint64_t now);
/* The same without a look at the events: what was under way at the last look, and what has been marked since. */
struct under_way flight_pending(const struct flight *flight, uint64_t now);
/* Puts an event behind the launches of each stream that has some without. During a capture that is
 * impossible, and in another thread's own stream: it is done later. */
void flight_mark(struct flight *flight, uint64_t now);
/* The same, and behind launches of which only an event of the program shows the end. */
void flight_mark_all(struct flight *flight, uint64_t now);
/* Whether the program's events have shown the end of work of late, and do soon enough for what is under way. */
bool flight_shows_ends(struct flight *flight, uint64_t now);
/* Launches without an event count, too. */
void flight_count_loose(const struct flight *flight, struct under_way *all);
/* The serial of the last record: before the driver is asked for an event. */
uint64_t flight_asked(void);
uint64_t flight_next_serial(void);
/* Before a record of an event of the program in a stream, the call number `record`. Returns which mark it is; -1: none. */
int flight_record_begin(struct flight *flight, CUevent event, CUstream stream, uint64_t record, uint64_t now);
/* After it, if it can be relied on. */
void flight_record_end(struct flight *flight, int mark, uint64_t record);
/* The program's event has happened, as the driver answered to a question after serial `asked`. Returns whether that showed an end. */
bool flight_answered(struct flight *flight, CUevent event, uint64_t asked, bool waited, uint64_t now);
/* Whether this thread's own stream has launches without an event. */
bool flight_any_own(const struct flight *flight);
/* The work of a stream of a context has ended now; NULL: of all streams, of any context. */
void flight_ended(struct flight *flight, CUstream stream, CUcontext context, uint64_t now);
/* Before a stream ends. */
void flight_forget_stream(struct flight *flight, CUstream stream);
/* Before and after a call that may end a context; NULL: any. Until the second one its work is under way, and it has no events.
 * gone: the context has ended, and its streams with it. */
void flight_close(struct flight *flight, CUcontext context);
void flight_closed(struct flight *flight, CUcontext context, bool gone);

#endif
