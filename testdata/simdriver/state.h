/*
 * The state file, which all processes of all containers share.
 *
 * It is a plain file, mapped read-write by libcuda.so.1, libnvidia-ml.so.1 and simctl. Its path is $SIMGPU_STATE, else
 * /run/simgpu/state. Fixed layout, little-endian, sparse (pages that no one uses take no memory):
 *
 *   struct state
 *   +-----------------------------+  written by
 *   | header                      |  simctl init; `dirty`, counters: holder of the lock
 *   | fails[32]    injected faults|  simctl fail (lock); `left`: a process that consumes one (atomic)
 *   | misses[1024] calls of     |  a process that calls one (atomic)
 *   |   functions by name only    |
 *   | events[256]  XID ring       |  simctl xid (lock); readers wait on `event_seq` (a shared futex)
 *   | gpus[32]    facts + totals |  facts: simctl; totals and peaks: holder of the lock; engine: holder of the GPU's
 *   |                             |    engine lock
 *   |   instances[7]  MIG         |  the same
 *   | groups[256]  per container  |  holder of the lock
 *   | clients[2048] per process   |  owner process, and a process that reaps it; both hold the lock. queued_ns: the owner;
 *   |                             |    busy time and segments: holder of the GPU's engine lock
 *   | shares[1024]  exported mem. |  holder of the lock
 *   | limits[256]  of cgroups     |  holder of the lock
 *   +-----------------------------+
 *   | what is written in exported |  the processes that have it; its place: holder of the lock
 *   | memory, up to the file's end|
 *   +-----------------------------+
 *
 * The truth about memory is in the cells of the clients and in the shares. The totals of GPUs, instances and groups are sums over
 * both, kept beside them for speed. A change of either sets `dirty` first and clears it last. Where `dirty` is set when
 * the lock is taken (its last holder was killed), the totals are computed again. So SIGKILL at any instruction is harmless.
 *
 * Locks are open-file-description locks on bytes behind the end of the file. The kernel drops them when the last copy of
 * the descriptor is closed, which is also when a real driver takes a process's memory back:
 *
 *   LOCK_BYTE            the state lock, held for microseconds
 *   LIFE_BYTE + slot     held by the client of that slot for as long as it lives
 *   SHARE_BYTE + slot    held by the descriptor of exported memory; see shared.c
 *
 * Time on a GPU has a lock of its own, a robust mutex per GPU, as it is taken with nearly every launch. See engine.c.
 */
#ifndef SIMDRIVER_STATE_H
#define SIMDRIVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATE_MAGIC 0x31555047534d4953ULL /* "SIMSGPU1" */
#define STATE_LAYOUT 10u
#define STATE_DEFAULT_PATH "/run/simgpu/state"

#define MAX_GPUS 32u
#define MAX_CLIENTS 2048u
#define MAX_GROUPS 256u
#define MAX_SHARES 1024u
#define MAX_FAILS 32u
#define MAX_EVENTS 256u
#define MAX_MISSES 1024u
#define MAX_LIMITS 256u
#define MAX_CGROUP_DEPTH 16u
#define NO_LIMIT UINT64_MAX
#define MAX_INSTANCES 7u /* MIG devices of a GPU */
#define MAX_NVLINKS 18u /* of a GPU, as on the largest so far */
#define BUSY_BUCKETS 128u
#define BUSY_BUCKET_NS 41666666ull /* 1/24 s, of which NVML's windows are made; 5 s of history */
#define SEGMENTS 64u
#define FULL_WIDTH 128u /* of a kernel that fills a GPU; so many run at once at most, as on a real GPU */

#define LOCK_BYTE ((off_t)1 << 40)
#define LIFE_BYTE (((off_t)1 << 40) + 1)
#define SHARE_BYTE (LIFE_BYTE + (off_t)MAX_CLIENTS)

#define NVIDIA_MAJOR 195u
#define NVIDIACTL_MINOR 255u
#define NVIDIA_CAPS_MAJOR 120u /* of the local numbers, which the kernel gives to no driver; the real one is dynamic */

/* LOST: the driver still lists the GPU and can't reach it (it fell off the bus). REMOVED: the driver lists it no more. */
enum presence { GPU_PRESENT = 0, GPU_LOST = 1, GPU_REMOVED = 2 };

/* Which PIDs NVML gives a process that lives in a PID namespace. */
enum nvml_pids {
	PIDS_OWN = 0,  /* its own namespace's */
	PIDS_HOST = 1, /* the host's */
	PIDS_MIXED = 2 /* its own in lists of processes, the host's with utilisation, as some drivers do */
};

/* What NVML reports of the utilisation of single processes. */
enum process_utilization {
	UTILIZATION_DETAILED = 0, /* both of its calls answer */
	UTILIZATION_INFO = 1,     /* only nvmlDeviceGetProcessesUtilizationInfo does, as on Blackwell */
	UTILIZATION_ZERO = 2,     /* every process has 0 % */
	UTILIZATION_NONE = 3,     /* there are never samples: NOT_FOUND */
	UTILIZATION_MISSING = 4   /* NOT_SUPPORTED */
};

/* What the UUID of a MIG device follows from. */
enum mig_uuids { MIG_UUIDS_PLACE = 0, MIG_UUIDS_CREATION = 1 };

/* How the driver limits the memory of control groups. */
enum memory_limits { LIMITS_NONE = 0, LIMITS_MISC = 1, LIMITS_DMEM = 2 };

enum charge { CHARGE_CONTEXT = 0, CHARGE_DATA = 1, CHARGE_KINDS = 2 };

/*
 * Time that kernels took, in buckets of BUSY_BUCKET_NS: high half the epoch (time / BUSY_BUCKET_NS) that the bucket
 * stands for, low half the busy nanoseconds of it. One word, so that both change at once.
 */
struct busy_bucket {
	_Atomic uint64_t epoch_and_ns;
};

struct fail {
	char symbol[64];
	_Atomic int64_t left;
	int32_t error;
	uint32_t pad;
};

/* Calls of one function by one process, which may be gone. */
struct miss {
	char symbol[64];
	uint32_t pid; /* 0: not filled in yet */
	uint32_t pad;
	_Atomic uint64_t calls;
};

struct event {
	uint64_t sequence; /* 0: never used */
	uint64_t data;     /* XID */
	uint32_t gpu;
	uint32_t instance; /* 1 + GPU instance id; 0: of the whole GPU */
};

/* A stretch in which a client had the engine: its kernel time went from v_begin to v_end while the clock ran. */
struct segment {
	uint64_t v_begin, v_end; /* of client_gpu.busy_ns */
	uint64_t t_begin, t_end; /* CLOCK_MONOTONIC, ns. Longer than the first two differ: several turns taken together */
};

/* The next change of an engine, recorded before it is made: a process that finds the writer dead makes it (again). */
struct step {
	_Atomic uint32_t valid;
	uint32_t slot;
	uint64_t clock, slice_left, engine_busy, client_busy, group_busy, segment_count;
	struct segment segment;
};

/*
 * What runs kernels: a GPU, or each of its MIG devices. Written with the engine lock of the GPU, except for the atomics.
 * Nothing runs in the background: a process that reads the engine first computes what happened since `clock`.
 */
struct engine {
	_Alignas(64) uint64_t clock;              /* CLOCK_MONOTONIC up to which it is computed, ns */
	uint64_t slice_left;                      /* of the turn of the client in `current` */
	uint64_t looked_for_dead;                 /* when */
	uint32_t current;                         /* 1 + slot of the client that has it, or had it last; 0: none yet */
	uint32_t pad;
	_Atomic uint64_t waiting[MAX_CLIENTS / 64]; /* bit per slot: has work queued. Set by the client, cleared by the process that computes */
	_Atomic uint64_t busy_ns;                 /* all kernel time ever */
	_Atomic uint64_t launches;
	struct step step;
	struct busy_bucket busy[BUSY_BUCKETS];
};

#define MIG_MEMORY_SLICES 8u

/* What a MIG profile gives. */
struct mig_profile {
	char name[16];             /* as 1g.5gb */
	uint32_t slices, size;     /* of compute; of memory, which is what a placement takes */
	uint32_t starts;           /* bit n: may begin at memory slice n */
	uint32_t most;             /* instances of it on one GPU */
	uint32_t sm_count;
	uint32_t copy_engines, decoders, jpegs, ofas;
	uint32_t pad;
	uint64_t memory_bytes;
};

/* A GPU instance. With its one compute instance (id 0), which has all of it, it is a MIG device. */
struct instance {
	_Atomic uint32_t serial; /* 0: free. Another at each creation, so that what had the former one open notices */
	uint32_t id;             /* of the GPU instance, as the placement gives it */
	uint32_t start;          /* first memory slice */
	_Atomic uint32_t compute; /* bool: it has the compute instance */
	struct mig_profile profile;
	uint64_t used[CHARGE_KINDS]; /* part of the GPU's. Lock. */
	uint64_t peak_used;
	struct engine engine;
};

struct gpu {
	/* Facts, written by `simctl init` and `simctl set`. */
	char name[96];
	char profile[32];
	uint8_t uuid[16];
	uint64_t memory_bytes;   /* what NVML calls total */
	uint64_t reserved_bytes; /* of which the driver keeps this much */
	uint64_t context_bytes;  /* what one context takes, */
	uint64_t unlisted_bytes; /* of which NVML does not count that much for the process */
	uint64_t init_bytes;     /* what the GPU takes as long as any process has called cuInit; not with MIG */
	uint64_t page_bytes;     /* of which allocations take whole ones; 0: they take what they ask for */
	uint64_t small_bytes;    /* up to so much, allocations of a process share pages */
	uint64_t kernel_ns;      /* duration of a kernel without one of its own */
	uint64_t slice_ns;       /* turn of a process while others have work queued */
	uint64_t switch_ns;      /* between the turns of two processes, in which nothing runs */
	uint64_t gap_ns;         /* between two kernels of a stream, */
	uint64_t start_ns;       /* or from a launch to the kernel, where no kernel of its stream is before it */
	uint64_t event_ns;       /* that the record of a timed event takes in its stream */
	uint32_t queue_depth;    /* launches that a stream holds before the next one blocks */
	uint32_t sample_ms;      /* NVML's sampling period of utilisation */
	uint32_t minor;
	uint32_t pci_domain, pci_bus, pci_device;
	uint32_t pci_device_id, pci_subsystem_id;
	int32_t numa_node;
	uint32_t pci_root, pci_upper, pci_switch, pci_board; /* equal numbers: shared host bridge, upper switch, switch, board */
	uint32_t nvswitch_links;     /* to switches that connect all such GPUs */
	uint8_t nvlinks[MAX_GPUS];  /* to that GPU; the pair's links are the sum of what both have */
	uint32_t sm_count, cores_per_sm;
	uint32_t cc_major, cc_minor;
	uint32_t threads_per_sm, shared_per_sm, shared_optin;
	uint32_t clock_khz, memory_clock_khz, bus_width, l2_bytes;
	uint32_t architecture, brand, power_mw, max_mig;
	uint32_t process_utilization;  /* enum process_utilization */
	uint32_t utilization_delay_ms; /* a process's samples are given out that long after their time */
	uint32_t mps;                  /* bool: kernels of its processes run together, as by NVIDIA's Multi-Process Service */
	uint32_t fixed_celsius, fixed_power_mw, fixed_percent; /* 1 + the value that NVML reports; 0: it reports the simulated value */

	/* Written by `simctl lose` and `simctl restore` (lock). Each adds one to epoch: what was opened before stays lost. */
	_Atomic uint32_t presence;
	_Atomic uint32_t epoch;

	/* Written by `simctl mig` and NVML (lock). */
	_Atomic uint32_t mig_enabled;
	uint32_t mig_serial; /* of the newest instance */
	uint32_t mig_uuids;  /* enum mig_uuids */

	/* Sums over the clients' cells, and their highest value since the last reset. Lock. */
	uint64_t used[CHARGE_KINDS];
	uint64_t peak_used;

	struct engine engine; /* of the whole GPU; what its MIG devices do is in theirs */
	struct instance instances[MAX_INSTANCES];
};

struct group_gpu {
	uint64_t used[CHARGE_KINDS];
	uint64_t peak[CHARGE_KINDS];
	uint64_t peak_total;
	_Atomic uint64_t busy_ns;  /* of all its processes ever, also of those that are gone. Engine lock. */
	_Atomic uint64_t launches;
};

struct group {
	uint64_t id; /* inode of the mount namespace, or $SIMGPU_GROUP; 0: free */
	uint64_t last_join;
	uint32_t clients;
	uint32_t pad;
	struct group_gpu gpus[MAX_GPUS];
};

/*
 * A client's queue is two numbers: the time in which the kernels run that it ever launched, and how much of that it has had the
 * GPU for. Kernels that run at the same time have it together: which do, only the client knows (see overlap.h), and when each
 * is done.
 */
struct client_gpu {
	uint64_t used[CHARGE_KINDS];
	uint64_t saved[CHARGE_KINDS]; /* what it had of the GPU when it was checkpointed */
	uint64_t shared; /* exported memory that the client made and holds; in the sums it is a share's */
	uint64_t imported; /* that others made and it holds: NVML counts it for no process */
	uint64_t unlisted; /* of used: what NVML does not count for the process */
	_Atomic uint64_t queued_ns; /* written by the client only */
	_Atomic uint64_t busy_ns;
	_Atomic uint64_t launches;
	_Atomic uint64_t width; /* of the newest kernel: what it fills of the GPU beside those of others by MPS */
	uint64_t segment_count; /* ever; the last SEGMENTS are kept */
	struct segment segments[SEGMENTS];
	struct busy_bucket busy[BUSY_BUCKETS];
};

/* A MIG device as a process remembers it; slot counts from 1, 0: none, the GPU as a whole. */
struct mig {
	uint32_t gpu, slot, serial;
};

/* Which of NVML's lists of processes has a client. */
enum graphics { GRAPHICS_NO = 0, GRAPHICS_ALSO = 1, GRAPHICS_ONLY = 2 };

/* As CUprocessState. */
enum stage { STAGE_RUNNING = 0, STAGE_LOCKED = 1, STAGE_CHECKPOINTED = 2 };

struct client {
	_Atomic uint32_t taken; /* 0: free. Set after, cleared while the life byte is not held by another */
	uint32_t group;         /* index into groups */
	uint32_t pid;           /* as the client itself sees it */
	_Atomic uint32_t host_pid; /* the same until a process of an outer PID namespace looks (see pids.c) */
	uint64_t pid_namespace; /* inode */
	uint64_t start_time;    /* /proc/self/stat field 22 */
	uint64_t joined;        /* rises with each client */
	struct mig mig; /* the one MIG device that it has */
	uint32_t graphics; /* enum graphics */
	_Atomic uint32_t stage; /* enum stage; a futex that its calls wait for. Lock */
	uint32_t pad;
	uint64_t cgroups[MAX_CGROUP_DEPTH]; /* inodes of its control group and those above it, when it last took memory; 0: unknown */
	struct client_gpu gpus[MAX_GPUS];
};

/* Of a control group, on one GPU. */
struct memory_limit {
	uint64_t cgroup; /* inode of its directory; 0: free */
	uint64_t soft, hard;
	uint32_t gpu;
	uint32_t pad;
};

/* Exported memory. */
struct share {
	_Atomic uint32_t taken; /* 0: free. Set last, cleared when no descriptor holds its byte */
	uint32_t group;         /* of the client that exported it */
	uint32_t gpu;
	struct mig mig;         /* the MIG device that it lies in */
	uint64_t bytes;         /* of the GPU; 0: the host's, or a pool's */
	uint64_t serial;        /* rises with each */
	uint64_t offset, length; /* of what is written there, in the state file */
	uint32_t ended;         /* its maker freed it: no one else can open it */
	uint32_t pad;
	uint8_t note[64];       /* what the importing process has to know */
};

struct state {
	uint64_t magic;
	uint32_t layout;
	uint32_t gpu_count;
	uint64_t size;
	char driver_version[80];
	uint32_t cuda_version; /* 1000 * major + 10 * minor */
	_Atomic uint32_t dirty;
	_Atomic uint32_t fail_count; /* entries of fails[] in use; 0 makes the check one load */
	_Atomic uint32_t event_seq;  /* futex: rises with each event, and when a GPU comes or goes */
	uint64_t next_event;
	uint64_t next_client;
	uint64_t next_share;
	uint32_t client_limit; /* no slot at or above this was ever used */
	uint32_t nvml_pids;    /* enum nvml_pids */
	uint32_t share_limit;  /* as client_limit */
	_Atomic uint32_t miss_count; /* rows of misses[] that were asked for, also beyond its end */
	uint32_t memory_limits;       /* enum memory_limits */
	_Atomic uint32_t limit_count; /* entries of limits[] in use */
	pthread_mutex_t engine_locks[MAX_GPUS]; /* robust, shared between processes */
	struct fail fails[MAX_FAILS];
	struct miss misses[MAX_MISSES]; /* of functions that exist by name only */
	struct event events[MAX_EVENTS];
	struct gpu gpus[MAX_GPUS];
	struct group groups[MAX_GROUPS];
	struct client clients[MAX_CLIENTS];
	struct share shares[MAX_SHARES];
	struct memory_limit limits[MAX_LIMITS];
};

_Static_assert(offsetof(struct state, driver_version) == 24, "the header is part of the contract");
_Static_assert(sizeof(struct fail) == 80 && sizeof(struct event) == 24, "no hidden padding");
_Static_assert(sizeof(struct mig_profile) == 64, "no hidden padding");
_Static_assert(sizeof(struct client_gpu) == 96 + 32 * SEGMENTS + 8 * BUSY_BUCKETS, "no hidden padding");
_Static_assert(sizeof(struct group_gpu) == 56 && sizeof(struct step) == 88, "no hidden padding");

/* One process's view of the state file. */
struct view {
	int fd; /* only for locks. A mapping would hold the description, and with it the locks, as long as someone else looks at a dead process' memory map */
	struct state *s;
	int self; /* own client slot, -1: none */
};

/* All return 0 or an errno value. */
int state_open(struct view *v, const char *path); /* NULL: $SIMGPU_STATE, else the default path */
void state_close(struct view *v);
int state_lock(struct view *v);
void state_unlock(struct view *v);
/* Keeps the forking thread's child from inheriting a state lock that another thread holds (pthread_atfork). */
void state_lock_before_fork(void);
void state_unlock_after_fork(void);

/* Takes a client slot for this process. Its work goes to that MIG device. ENODEV: the device does not exist any more. */
int client_join(struct view *v, struct mig mig);
bool client_lives(const struct view *v, unsigned slot);

/* Takes bytes of a GPU for the own client, or returns ENOMEM. Takes the lock. */
int charge_take(struct view *v, unsigned gpu, enum charge kind, uint64_t bytes);
void charge_return(struct view *v, unsigned gpu, enum charge kind, uint64_t bytes);
/* The same of the client's context, of which NVML does not count that much for the process. */
int charge_take_unlisted(struct view *v, unsigned gpu, uint64_t bytes, uint64_t unlisted);
void charge_return_unlisted(struct view *v, unsigned gpu, uint64_t bytes, uint64_t unlisted);
/* Takes what a client has of all GPUs away from it, to give it back later: both only in the right stage (EINVAL). ENOMEM. Take the lock. */
int clients_save(struct view *v, const unsigned *slots, unsigned count);
int clients_restore(struct view *v, const unsigned *slots, unsigned count);
/* From one stage to another; EINVAL: it is in none of the first. Takes the lock. */
int clients_stage(struct view *v, const unsigned *slots, unsigned count, enum stage from, enum stage to);
/* What a library takes of a GPU for itself: part of the client's context there, until the process ends. ENOMEM. Takes the lock. */
int client_grow(struct view *v, unsigned slot, unsigned gpu, uint64_t bytes);
/* Until the own client runs. */
void client_wait_running(struct view *v);
/* Another open file description of the state file. */
int state_open_again(void);
/* A mapping of a part of it, by a description of its own. MAP_FAILED: errno is the reason. */
void *state_map(const char *path, uint64_t offset, uint64_t bytes);

/* Exported memory (shared.c). create takes the bytes out of the own client's cell. Both give a descriptor that is the
 * caller's, which share_end closes. They take the lock. */
int share_create(struct view *v, const struct share *what, int *fd, unsigned *slot);
int share_import(struct view *v, int fd, struct share *found, int *kept, unsigned *slot);
/* By its number, for what is passed on without a descriptor. */
int share_open(struct view *v, unsigned slot, uint64_t serial, struct share *found, int *kept);
void share_end(struct view *v, int kept, unsigned slot, bool imported);
/* The maker's end, after which no one opens it; and that of a process that opened it. */
void share_withdraw(struct view *v, int kept, unsigned slot);
void share_close(struct view *v, int kept);
/* Lock held. */
void shares_reap(struct view *v);
bool shares_on(const struct state *s, unsigned gpu);
bool shares_of(const struct state *s, unsigned group);
struct instance *share_instance(struct state *s, const struct share *sh);

/* Gives back what dead clients held, and exported memory that no one holds. Takes the lock. */
void state_reap(struct view *v);
/* What all living clients hold of a GPU, or of an instance of it that is not NULL. Takes the lock. */
int gpu_used_now(struct view *v, unsigned gpu, const struct instance *in, uint64_t *bytes);
uint64_t gpu_used(const struct gpu *c); /* lock held */
uint64_t gpu_capacity(const struct gpu *c);
uint64_t gpu_init_bytes(const struct gpu *c);
uint64_t instance_used(const struct instance *in);

/* An injected failure of that symbol: true, and the error that it shall return. */
bool fail_consume(struct view *v, const char *symbol, int *error);

/* Counts a call of a function that exists by name only; its row is where this process counts it. */
struct miss_row {
	_Atomic uint32_t pid, index;
};
void miss(struct view *v, struct miss_row *row, const char *symbol);

/* For the tests of what a killed process leaves behind: see $SIMGPU_CRASH. */
void crash_point(void);

/* The engine lock of a GPU. 0 or an errno value. Taken after the state lock, never before it. */
void engine_locks_init(struct state *s);
int engine_lock(struct view *v, unsigned gpu);
void engine_unlock(struct view *v, unsigned gpu);
/* The engine that runs a client's kernels. */
struct engine *engine_of(struct state *s, const struct client *cl, unsigned gpu);
/* Computes what happened up to now. The engine_, gpu_ and busy_ functions from here on require the engine lock. */
void engine_advance(struct view *v, unsigned gpu, struct engine *e);
/* That client has work queued from now on. Advanced. */
void engine_wake(struct engine *e, unsigned slot);
bool engine_waiting(const struct engine *e, unsigned slot);
/* When the client's kernel time will be v if no other process launches anything more. Advanced. */
uint64_t engine_eta(struct state *s, unsigned gpu, const struct engine *e, unsigned slot, uint64_t v);
/* Computes what happened up to now on a GPU and its MIG devices. */
void gpu_advance(struct view *v, unsigned gpu);
/* Nothing of that client runs any more, on any GPU. Takes the engine locks. */
void engines_forget(struct view *v, unsigned slot);

uint64_t now_ns(void);
/* Spreads that much kernel time over start..end. */
void busy_add(struct busy_bucket *ring, uint64_t start_ns, uint64_t end_ns, uint64_t busy_ns);
/* Percent of the time from..to in which kernels ran. */
unsigned busy_percent(const struct busy_bucket *ring, uint64_t from_ns, uint64_t to_ns);

/* The client's PID as this process sees it, 0 if it can't; or the host's. Not in libcuda.so.1. */
unsigned client_pid(struct view *v, unsigned slot, bool host);

/* Whether this process may see that GPU: its device node is there and the devices cgroup lets it be opened. */
bool gpu_visible(const struct gpu *c);

/* That instance, or NULL: no MIG device at that slot (which counts from 1), or it is another now. */
struct instance *instance_at(struct gpu *c, unsigned slot);
struct instance *instance_of(struct state *s, const struct mig *mig);
/* The instances in order of GPU instance id: slots (from 1), and how many; and those of them that are MIG devices, as NVML and simctl number these. */
unsigned gpu_instances_in_order(const struct gpu *c, unsigned slots[MAX_INSTANCES]);
unsigned instances_in_order(const struct gpu *c, unsigned slots[MAX_INSTANCES]);
/* Fixed by the GPU and the instance's id, as on a real GPU; with MIG_UUIDS_CREATION another one for each creation. */
void instance_uuid(const struct gpu *c, const struct instance *in, uint8_t uuid[16]);
/* Minor numbers of the two /dev/nvidia-caps nodes: of the GPU instance and of its compute instance. */
#define CAP_GPU_INSTANCE 0
#define CAP_COMPUTE_INSTANCE 1
#define CAP_INSTANCE_IDS 15u
unsigned cap_minor(const struct gpu *c, unsigned id, unsigned which);
/* "NVIDIA A100-SXM4-40GB MIG 1g.5gb"; in NULL: the GPU's own. */
#define DEVICE_NAME 128
void instance_name(const struct gpu *c, const struct instance *in, char text[DEVICE_NAME]);
/* The MIG profiles of a GPU; NULL and 0 if it has none. In libnvidia-ml.so.1 and simctl. */
const struct mig_profile *mig_profiles(const struct gpu *c, unsigned *count);
/* Places (mig_place.c), as sets of memory slices. Lock held. */
unsigned mig_slices(unsigned start, unsigned size);
unsigned mig_taken(const struct gpu *c);
unsigned mig_count(const struct gpu *c, const char *profile);
bool mig_may_start(const struct mig_profile *p, unsigned start, unsigned taken);
bool mig_memory_fits(const struct gpu *c);
enum mig_put { MIG_PUT, MIG_FULL, MIG_NO_MEMORY };
enum mig_put mig_put(struct gpu *c, const struct mig_profile *p, unsigned start, bool compute, unsigned *slot);
/* The process that keeps a GPU, or one MIG device of it (slot not 0), from being changed; NULL: none. */
const struct client *mig_user(const struct state *s, unsigned gpu, unsigned slot);
/* The GPU may be seen, and both nodes are there and may be opened. */
bool instance_visible(const struct gpu *c, const struct instance *in);

/* The NVLinks between two GPUs, as configured. */
unsigned nvlinks_between(const struct state *s, unsigned a, unsigned b);

#define UUID_TEXT 41
void uuid_format(const uint8_t uuid[16], char text[UUID_TEXT]);
void mig_uuid_format(const struct gpu *c, const struct instance *in, char text[UUID_TEXT]);
bool uuid_parse(const char *text, uint8_t uuid[16]);

#endif
