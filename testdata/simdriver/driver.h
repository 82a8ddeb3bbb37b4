/*
 * Inside libcuda.so.1: what its files share. Objects (contexts, streams, events, modules, functions, allocations) belong
 * to the process and live on its heap; only sums reach the state file. One mutex of the process protects all of them.
 * It is never held during a wait (for a stream) nor across a fork.
 */
#ifndef SIMDRIVER_DRIVER_H
#define SIMDRIVER_DRIVER_H

#include "cuda_api.h"
#include "overlap.h"
#include "state.h"

#include <stdbool.h>

enum object_kind { OBJECT_CONTEXT = 1, OBJECT_STREAM, OBJECT_EVENT, OBJECT_MODULE, OBJECT_FUNCTION,
	OBJECT_PHYSICAL, OBJECT_ARRAY, OBJECT_MIPMAP, OBJECT_EXTERNAL,
	OBJECT_POOL, OBJECT_GRAPH, OBJECT_NODE, OBJECT_EXEC, OBJECT_LINK, OBJECT_LIBRARY, OBJECT_KERNEL,
	OBJECT_TEXTURE, OBJECT_SURFACE, OBJECT_USER, OBJECT_GREEN, OBJECT_RESOURCES };

#define MAX_QUEUE 1024u

/* The last launches into a stream, so that no more than the GPU's queue_depth wait in it. */
struct backlog {
	uint64_t *tails; /* MAX_QUEUE of them; NULL: none yet */
	uint64_t count;  /* ever */
};

/*
 * What this process has queued on a GPU. Moments are measured in kernel time of this queue: a kernel of which the end is at v is
 * done when the GPU has spent v on the queue.
 */
struct queue {
	unsigned gpu;
	struct engine *engine;       /* NULL: not used yet */
	struct client_gpu *mine;
	uint64_t queued_ns;          /* the end of all */
	uint64_t busy_ns, looked_at; /* what the GPU had spent on it at that time, when it was last computed */
	uint64_t dropped_ns;         /* in both: what ended with a context, which is not in *mine */
	struct overlap overlap;      /* from busy_ns to queued_ns */
	CUevent pending;             /* recorded events that had not happened by then */
	atomic_uint drops;           /* how often work was dropped; waits sleep on it */
};

/* What a kernel takes: so long, if no other runs with it, and of FULL_WIDTH so much of the GPU. */
struct load {
	uint64_t ns;
	unsigned width;
};

/* What cuStreamSetAttribute sets, and a number that cuStreamGetId gives out; see stream_attribute.c. */
struct stream_settings {
	unsigned long long id; /* 0: not asked for yet */
	CUstreamAttrValue window;
	int policy, domain;
	bool map_set;
	unsigned char map[2];
};

struct CUctx_st {
	CUdevice device;
	unsigned gpu;
	unsigned flags;
	bool primary;
	CUcontext of;	  /* the primary one, of a green one; else NULL */
	CUgreenCtx green; /* that it stands for */
	atomic_bool alive; /* read by other threads without the lock */
	unsigned retained;     /* primary only */
	uint64_t charged;      /* context bytes, as charged, */
	uint64_t unlisted;     /* of which NVML does not count so many */
	uint64_t legacy_tail;  /* what the queue's kernel time is when the work of the legacy default stream is done */
	uint64_t kernel_tail;  /* the same of its last kernel */
	uint64_t blocking_tail; /* the same over all its blocking streams */
	uint64_t any_tail;     /* the same over all streams */
	uint64_t floor;	       /* nothing in it begins before that: cuCtxWaitEvent */
	struct backlog backlog; /* of the legacy default stream */
	struct stream_settings settings; /* the same */
	bool limits_set;
	bool spare_used;
	unsigned loaded, ran; /* features of the device's runtime that modules and launches have needed, a bit for each */
	unsigned attached; /* users by cuCtxAttach */
	unsigned long long id; /* 0: not asked for yet */
	int cache_config, shared_config;
	uint64_t limits[CU_LIMITS];
};

struct CUstream_st {
	CUcontext ctx;
	unsigned flags;
	int priority;
	uint64_t tail; /* as legacy_tail */
	uint64_t kernel_tail; /* the same of its last kernel */
	struct backlog backlog;
	struct stream_settings settings;
	CUgreenCtx green; /* that it belongs to; NULL: none */
	bool detached;	  /* that is destroyed */
	struct capture *capture; /* that it takes part in; see capture.c */
	struct nodes *captured;	 /* what its next node will depend on */
};

struct CUevent_st {
	CUcontext ctx;
	unsigned flags;
	bool recorded;
	bool waits;          /* in the list of its queue: happens when the GPU has spent `tail` on it. Else at `time` */
	struct queue *queue; /* of its last record */
	uint64_t tail;
	uint64_t time;       /* CLOCK_MONOTONIC, ns */
	CUevent next, *link; /* in that list */
	uint64_t pending_record; /* the number of its last record in pending.c, as long as that is not done; else 0 */
	uint64_t capture_id; /* it was recorded in that capture; 0: in none */
	struct nodes *captured;
};

/* How long the launches of a function take: the sum of these. */
struct duration {
	uint64_t ns;
	uint64_t block_ns; /* for each block of the grid */
	unsigned parameter; /* 1 + the one that holds nanoseconds; 0: none */
};

struct param {
	uint32_t offset, bytes;
};

struct CUfunc_st {
	CUmodule module;
	char *name;
	struct duration duration;
	uint32_t shape[3];    /* cuFuncSetBlockShape */
	int attributes[16];   /* cuFuncSetAttribute */
	unsigned attributes_set; /* a bit for each */
	struct param *params; /* as far as the image names them */
	unsigned param_count;
	struct CUfunc_st *next;
};

struct CUmod_st {
	CUcontext ctx;
	struct CUfunc_st *functions;
	struct module_data *data;
	unsigned features; /* of the device's runtime, a bit for each: see runtime.c */
};

struct device {
	unsigned gpu;
	uint32_t epoch; /* the GPU's at cuInit */
	struct mig mig; /* slot 0: the whole GPU */
	struct CUctx_st primary;
};

struct process {
	struct view view;
	atomic_bool ready; /* cuInit succeeded once; stays true in a forked child */
	bool kernel_ns_set; /* by $SIMGPU_KERNEL_US */
	uint64_t kernel_ns;
	unsigned device_count;
	struct device devices[MAX_GPUS];
	struct queue queues[MAX_GPUS]; /* by GPU */
};

extern struct process process;

void process_lock(void);
void process_unlock(void);
/* Returns, with the lock held as before, after a call of process_changed (which needs the lock), or at that time, or at will. */
void process_wait(uint64_t until);
void process_changed(void);

/* What CUDA numbers in this process, in that order: whole GPUs, or one MIG device. */
unsigned visible_devices(struct state *s, struct mig found[MAX_GPUS]);

/* Start of nearly every call: initialised, not a forked child, no fault injected. */
CUresult enter(const char *symbol);
/* The same, but it doesn't wait while the process is locked for a checkpoint. */
CUresult enter_locked(const char *symbol);
#define ENTER()                                \
	do {                                   \
		CUresult r_ = enter(__func__); \
		if (r_)                        \
			return r_;             \
	} while (0)

struct gpu *device_gpu(CUdevice dev); /* NULL: no such device */
struct instance *device_instance(CUdevice dev); /* NULL: a whole GPU, or its instance was destroyed */
bool device_lost(CUdevice dev); /* since cuInit: its GPU gone, or gone and back; cut up by MIG, or its instance destroyed */
uint64_t device_capacity(CUdevice dev);
CUresult from_errno(int err);

/* The calling thread's context: alive, or an error. */
CUresult current_context(CUcontext *ctx);

/* The same as it was set, which can be one that stands for a green context; or NULL. */
CUcontext current_as_set(void);

/* Objects by handle. A handle that was never given out, or was destroyed, is not found. Process lock held. */
bool object_add(enum object_kind kind, void *object);
bool object_is(enum object_kind kind, const void *object);
void object_remove(const void *object);
/* Removes and frees one, or returns INVALID_HANDLE. Takes the process lock. */
CUresult object_destroy(enum object_kind kind, void *object);
/* Calls drop for every object of that kind; those for which it returns true are removed. */
void object_sweep(enum object_kind kind, bool (*drop)(void *object, CUcontext ctx), CUcontext ctx);

/* A context goes: everything that belongs to it goes too. Process lock held. */
void memory_drop_context(CUcontext ctx);
void modules_drop_context(CUcontext ctx);
void streams_drop_context(CUcontext ctx);
void arrays_drop_context(CUcontext ctx);
void textures_drop_context(CUcontext ctx);

/* The parameters in the list at that place of its PTX. False: no memory. Process lock held. */
bool function_read_params(CUfunction f, const char *at);
/* A copy of the arguments of a launch, to be freed. False: no memory. */
bool function_copy_arguments(CUfunction f, void **from, void ***out);

/* The global data of a module. Process lock held. */
CUresult module_data_load(CUmodule m, const char *text);
void module_data_free(CUmodule m);
/* Takes the lock. */
bool module_data_is_managed(CUmodule m, const char *name);

/* That place of a PTX text is in a comment. */
bool text_in_comment(const char *text, const char *at);
/* What a module, and a launch of its kernels, takes because they call malloc or printf; and whether such a launch has
 * fixed that limit of a context. Process lock held. */
enum { CONTEXT_FEATURES = 2 };
CUresult runtime_load(CUmodule m, const char *text);
CUresult runtime_launch(CUmodule m);
bool runtime_fixed(CUcontext ctx, int limit);
/* What a context's limit is set to. Process lock held. */
uint64_t *context_limit(CUcontext ctx, int limit);

/* Of memory of its own, or of some that is charged elsewhere. */
CUresult mipmap_create(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, bool own_memory);

/* The range lies in one allocation that the device can reach. Process lock held. */
bool memory_covers(CUdeviceptr ptr, size_t bytes);
/* What is written at that address, and how much follows it there; NULL: the memory is at that address. Process lock held. */
struct content;
bool memory_content(CUdeviceptr ptr, struct content **of, uint64_t *offset, size_t *left);

/* The same of arrays, with a byte of a row, a row and a plane for the address. Process lock held. */
CUresult array_covers(CUarray array, size_t x, size_t y, size_t z, size_t width, size_t height, size_t depth);
bool array_content(CUarray array, size_t x, size_t y, size_t z, struct content **of, uint64_t *offset, size_t *left);
bool array_is_surface(CUarray array); /* kernels can write it */

/* NULL: no memory. Process lock held. */
CUstream stream_new(CUcontext ctx, unsigned flags, int priority);
/* NULL and the two special handles included. Process lock held. */
CUresult stream_find(CUstream handle, CUcontext ctx, CUstream *stream);
/* What is in a stream is done when its queue's kernel time is that. NULL stream: legacy default. Process lock held. */
uint64_t stream_ready(CUcontext ctx, CUstream stream);
void stream_advance(CUcontext ctx, CUstream stream, uint64_t tail);
/* Work for the GPU, counted as so many launches: returns when it ends. Process lock held. */
uint64_t stream_put_load(CUcontext ctx, CUstream stream, struct load load, unsigned launches);
/* Whether all that is in it is done. Process lock held. */
bool stream_done(CUcontext ctx, CUstream stream);
/* Returns when it is. Takes the process lock. */
CUresult stream_wait(CUstream handle);

/*
 * Puts work for the GPU into a stream (any handle) of the current context, counted as so many launches.
 * Returns at once unless the stream is full. For whatever runs kernels: launches, graphs. Takes the process lock.
 */
CUresult stream_run(CUstream handle, struct load load, unsigned launches);
/* The function is called when the stream (any handle) has come so far. Takes the process lock. */
CUresult host_function_put(CUstream handle, CUhostFn function, void *data);
bool host_function_calls(void); /* this thread is in one */
/* The function of a kernel of a library, which launches take in place of a function; else what it is. Takes the lock. */
CUfunction kernel_function(CUfunction f);
/* What so many multiprocessors are of the device, of FULL_WIDTH. */
unsigned width_of(CUdevice dev, uint64_t multiprocessors);
/* What a launch of that function takes. Process lock held. */
struct load kernel_load(CUfunction f, CUdevice dev, const unsigned grid[3], void **params, void **extra);

/* The queue of a context. Process lock held in all of these but queue_wait. */
struct queue *queue_of(CUcontext ctx);
/* Puts work there that can't begin before that moment, and returns when it ends. */
uint64_t queue_put(struct queue *q, uint64_t ready, struct load load, unsigned launches);
/* What is in it ends here. */
void queue_drop(struct queue *q);
bool queue_done(struct queue *q, uint64_t tail);
/* An event happens when the GPU has spent that much on the queue. */
void queue_mark(struct queue *q, CUevent event, uint64_t tail);
void queue_unmark(CUevent event);
void queue_wait(struct queue *q, uint64_t tail);
/* 0: it has come so far; else when to look again. */
uint64_t queue_eta(struct queue *q, uint64_t tail);
void wait_until(uint64_t ns);

/* An event of all that is in a context, and a context that waits for one. Take the lock. */
CUresult context_record(CUcontext ctx, CUevent event);
CUresult context_wait(CUcontext ctx, CUevent event);
/* The event happens when what is in the stream is done. Process lock held. */
void event_put(CUevent event, CUcontext ctx, CUstream stream);

/* Before work is put into a stream: whether it is captured instead, or may not be put there. Process lock held. */
CUresult capture_check(CUcontext ctx, CUstream stream, bool *captured);
/* A node for what the stream was given. Process lock held. */
CUresult capture_work(CUstream stream, int type, struct load load);
struct transfer;
CUresult capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS *params);
CUresult capture_host_function(CUstream stream, CUhostFn function, void *data);
CUresult capture_transfer(CUstream stream, const struct transfer *t);
/* Before a call that waits for a stream, or (NULL) for all of the context: not while it is captured. Takes the lock. */
CUresult capture_forbids_wait(CUcontext ctx, CUstream handle);
/* Before a call that is unsafe while this thread, or a global capture, captures. Takes the lock. */
CUresult capture_forbids_unsafe(void);
/* Process lock held. */
CUresult capture_record(CUevent event, CUstream stream);
CUresult capture_wait(CUstream stream, CUevent event, bool *captured);
void capture_event_forbidden(CUevent event);
void captures_drop_stream(CUstream stream);

static inline CUstream per_thread(CUstream s)
{
	return s ? s : CU_STREAM_PER_THREAD;
}

#endif
