/*
 * Inside libcuda.so.1: what its files share. Objects (contexts, streams, events, modules, functions, allocations) belong
 * to the process and live on its heap; only sums reach the state file. One process-wide mutex guards them all and is
 * never held while time passes (a wait for a stream) nor across a fork.
 */
#ifndef SIMDRIVER_DRIVER_H
#define SIMDRIVER_DRIVER_H

#include "cuda_api.h"
#include "state.h"

#include <stdbool.h>

enum object_kind { OBJECT_CONTEXT = 1, OBJECT_STREAM, OBJECT_EVENT, OBJECT_MODULE, OBJECT_FUNCTION };

struct CUctx_st {
	CUdevice device;
	unsigned card;
	unsigned flags;
	bool primary;
	atomic_bool alive; /* read by other threads without the lock */
	unsigned retained;     /* primary only */
	uint64_t charged;      /* context bytes, as charged */
	uint64_t legacy_tail;  /* when the work of the legacy default stream is done */
	uint64_t blocking_tail; /* the same over all its blocking streams */
	uint64_t any_tail;     /* the same over all streams */
};

struct CUstream_st {
	CUcontext ctx;
	unsigned flags;
	int priority;
	uint64_t tail;
};

struct CUevent_st {
	CUcontext ctx;
	unsigned flags;
	bool recorded;
	uint64_t time;
};

struct CUfunc_st {
	CUmodule module;
	char *name;
	uint64_t duration_ns; /* 0: the card's default */
	struct CUfunc_st *next;
};

struct CUmod_st {
	CUcontext ctx;
	struct CUfunc_st *functions;
};

struct device {
	unsigned card;
	uint32_t epoch; /* the card's at cuInit */
	struct mig mig; /* slot 0: the whole card */
	struct CUctx_st primary;
};

struct process {
	struct view view;
	atomic_bool ready; /* cuInit succeeded once; stays true in a forked child */
	bool kernel_ns_set; /* by $SIMGPU_KERNEL_US */
	uint64_t kernel_ns;
	unsigned device_count;
	struct device devices[MAX_CARDS];
};

extern struct process process;

void process_lock(void);
void process_unlock(void);

/* What CUDA numbers in this process, in that order: whole cards, or one MIG device. */
unsigned visible_devices(struct state *s, struct mig found[MAX_CARDS]);

/* Start of nearly every call: initialised, not a forked child, no fault injected. */
CUresult enter(const char *symbol);
#define ENTER()                                \
	do {                                   \
		CUresult r_ = enter(__func__); \
		if (r_)                        \
			return r_;             \
	} while (0)

struct card *device_card(CUdevice dev); /* NULL: no such device */
struct instance *device_instance(CUdevice dev); /* NULL: a whole card, or its instance was destroyed */
bool device_lost(CUdevice dev); /* since cuInit: its card gone, or gone and back; cut up by MIG, or its instance destroyed */
uint64_t device_capacity(CUdevice dev);
CUresult from_errno(int err);

/* The calling thread's context: alive, or an error. */
CUresult current_context(CUcontext *ctx);

/* Objects by handle. A handle that was never given out, or was destroyed, is not found. Process lock held. */
bool object_add(enum object_kind kind, void *object);
bool object_is(enum object_kind kind, const void *object);
void object_remove(const void *object);
/* Removes and frees one, or says INVALID_HANDLE. Takes the process lock. */
CUresult object_destroy(enum object_kind kind, void *object);
/* Calls drop for every object of that kind; those for which it returns true are removed. */
void object_sweep(enum object_kind kind, bool (*drop)(void *object, CUcontext ctx), CUcontext ctx);

/* A context goes: everything that belongs to it goes too. Process lock held. */
void memory_drop_context(CUcontext ctx);
void modules_drop_context(CUcontext ctx);
void streams_drop_context(CUcontext ctx);

/* The range lies in one allocation that the device can reach. Process lock held. */
bool memory_covers(CUdeviceptr ptr, size_t bytes);

/* NULL and the two special handles included. Process lock held. */
CUresult stream_find(CUstream handle, CUcontext ctx, CUstream *stream);
uint64_t stream_ready(CUcontext ctx, CUstream stream); /* NULL stream: legacy default */
void stream_advance(CUcontext ctx, CUstream stream, uint64_t tail);
CUresult stream_wait(CUstream handle);
void wait_until(uint64_t ns);

static inline CUstream per_thread(CUstream s)
{
	return s ? s : CU_STREAM_PER_THREAD;
}

#endif
