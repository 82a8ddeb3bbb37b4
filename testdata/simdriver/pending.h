/*
 * Inside libcuda.so.1: what is in a stream and not in the queue yet, as something before it waits for the host or for memory. Process
 * lock held, but where another rule is written.
 */
#ifndef SIMDRIVER_PENDING_H
#define SIMDRIVER_PENDING_H

#include "driver.h"

#include <pthread.h>

struct pending {
	/* Whether it can be done, now that nothing is before it; if not, when to ask again is made sooner. NULL: yes. */
	bool (*ready)(struct pending *p, uint64_t *ask_again);
	void (*run)(struct pending *p); /* NULL: nothing */
	void (*end)(struct pending *p); /* frees it, also if its context went before */
	bool calls;			/* run is a call of the program, without the lock and in a thread for such calls */
	bool unlocked;			/* run takes the lock itself */
	CUcontext ctx;
	CUstream stream; /* NULL: the legacy one */
	/* From here on of pending.c. */
	CUgreenCtx green; /* that was current, or the stream's */
	bool blocking;
	enum { PENDING_WAITS, PENDING_CALLED, PENDING_RUNS } state;
	uint64_t number;
	struct pending *next;
};

/* Something that is not in the queue yet comes before what is put there next. */
bool pending_before(CUcontext ctx, CUstream stream);
/* Puts it behind all that is in the stream. A failure ends it. Gives its number if asked. */
CUresult pending_put(struct pending *p, CUcontext ctx, CUstream stream, uint64_t *number);
/* Calls look for each that waits. */
void pending_each(void (*look)(struct pending *p, void *data), void *data);
bool pending_has(uint64_t number);
/* Nothing of it is done any more, but for a call that runs. */
void pending_drop_context(CUcontext ctx);
/* The stream is no object any more; it is freed when nothing in it is pending. */
void pending_free_stream(CUstream stream);
/* These take the lock: return when what is there now is done. */
void pending_wait(CUstream handle);
void pending_wait_context(CUcontext ctx);
/* Returns when a launch has room in the stream. */
void pending_wait_room(CUstream handle);
/* A wait of something that becomes ready when the GPU has come so far. True: it has. */
bool pending_queue_done(struct queue *q, uint64_t tail, uint64_t *ask_again);

/* What is deferred, of the kinds that need no more. */
CUresult pending_put_load(CUcontext ctx, CUstream stream, struct load load, unsigned launches);
CUresult pending_put_free(CUcontext ctx, CUstream stream, CUdeviceptr ptr);
struct transfer;
CUresult pending_put_transfer(CUcontext ctx, CUstream stream, const struct transfer *t);
CUresult pending_put_record(CUcontext ctx, CUstream stream, CUevent event);
/* The stream waits for an event: for its record of that number (0: it is done), or until the queue has come so far. */
CUresult pending_put_wait(CUcontext ctx, CUstream stream, uint64_t record, struct queue *q, uint64_t tail);
/* The event goes. */
void pending_forget_event(CUevent event);

#endif
