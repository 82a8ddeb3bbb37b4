/*
 * Checkpoints, as a process makes them of another or of itself. A locked process' calls wait. Its memory's contents lie on the host
 * anyway, so that a checkpoint moves only the account; the process has nothing of any GPU until it is restored.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <sys/stat.h>

#define LOOK_NS 100000ull

static uint64_t own_pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

/* The clients of one process: one for each copy of the driver in it. */
struct found {
	unsigned count, slots[MAX_CLIENTS];
};

/* The process that the caller knows by that PID. False: it uses no GPU, or there is none. */
static bool find(int pid, struct found *f)
{
	struct state *s = process.view.s;
	uint64_t here = own_pid_namespace();

	f->count = 0;
	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		const struct client *cl = &s->clients[i];
		unsigned known = cl->pid_namespace == here ? cl->pid : atomic_load(&cl->host_pid);

		if (atomic_load(&cl->taken) && known == (unsigned)pid && client_lives(&process.view, i))
			f->slots[f->count++] = i;
	}
	return f->count;
}

static CUresult result(int err)
{
	return err == EINVAL ? CUDA_ERROR_ILLEGAL_STATE : from_errno(err);
}

/* When all that the client has launched on the GPU will be done; 0: it is. */
static uint64_t busy_until(unsigned slot, unsigned gpu)
{
	struct state *s = process.view.s;
	struct client *cl = &s->clients[slot];
	struct engine *e = engine_of(s, cl, gpu);
	uint64_t queued, eta = 0;

	if (!e || engine_lock(&process.view, gpu))
		return 0;
	engine_advance(&process.view, gpu, e);
	queued = atomic_load(&cl->gpus[gpu].queued_ns);
	if (atomic_load(&cl->gpus[gpu].busy_ns) < queued)
		eta = engine_eta(s, gpu, e, slot, queued);
	engine_unlock(&process.view, gpu);
	return eta;
}

/* False: the deadline came first. */
static bool wait_idle(unsigned slot, uint64_t deadline)
{
	for (unsigned gpu = 0; gpu < process.view.s->gpu_count;) {
		uint64_t eta = busy_until(slot, gpu), now = now_ns();

		if (!eta) {
			gpu++;
			continue;
		}
		if (now >= deadline)
			return false;
		if (eta < now + LOOK_NS)
			eta = now + LOOK_NS;
		wait_until(eta < deadline ? eta : deadline);
	}
	return true;
}

static bool shares_memory(unsigned slot)
{
	for (unsigned gpu = 0; gpu < process.view.s->gpu_count; gpu++) {
		const struct client_gpu *c = &process.view.s->clients[slot].gpus[gpu];

		if (c->shared || c->imported)
			return true;
	}
	return false;
}

#define FIND(found, pid)                                 \
	do {                                             \
		CUresult r_ = enter_locked(__func__);    \
		if (r_)                                  \
			return r_;                       \
		if (!find(pid, &(found)))                \
			return CUDA_ERROR_INVALID_VALUE; \
	} while (0)

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	uint64_t deadline = args && args->timeoutMs ? now_ns() + args->timeoutMs * 1000000ull : UINT64_MAX;
	struct found f;
	bool idle = true;
	int err;

	FIND(f, pid);
	err = clients_stage(&process.view, f.slots, f.count, STAGE_RUNNING, STAGE_LOCKED);
	for (unsigned i = 0; !err && idle && i < f.count; i++)
		idle = wait_idle(f.slots[i], deadline);
	if (err || idle)
		return result(err);
	clients_stage(&process.view, f.slots, f.count, STAGE_LOCKED, STAGE_RUNNING);
	return CUDA_ERROR_NOT_READY;
}

/* A later driver checkpoints a process that shares memory; that memory stays for those that hold it. */
static bool can_be_shared(void)
{
	return process.view.s->cuda_version >= 13050;
}

CUresult cuCheckpointProcessCheckpoint(int pid, void *args)
{
	struct found f;

	(void)args;
	FIND(f, pid);
	for (unsigned i = 0; i < f.count; i++) {
		if (shares_memory(f.slots[i]) && !can_be_shared())
			return CUDA_ERROR_NOT_SUPPORTED;
	}
	return result(clients_save(&process.view, f.slots, f.count));
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct found f;

	FIND(f, pid);
	if (args && args->gpuPairsCount)
		return process.view.s->cuda_version >= 13000 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	return result(clients_restore(&process.view, f.slots, f.count));
}

CUresult cuCheckpointProcessUnlock(int pid, void *args)
{
	struct found f;

	(void)args;
	FIND(f, pid);
	return result(clients_stage(&process.view, f.slots, f.count, STAGE_LOCKED, STAGE_RUNNING));
}

CUresult cuCheckpointProcessGetState(int pid, int *state)
{
	struct found f;

	FIND(f, pid);
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = (int)atomic_load(&process.view.s->clients[f.slots[0]].stage);
	return CUDA_SUCCESS;
}

/* Any thread will do, as the driver has none of its own here: the process' first. */
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct found f;

	FIND(f, pid);
	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	*tid = pid;
	return CUDA_SUCCESS;
}
