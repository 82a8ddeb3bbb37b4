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

/* The process that the caller knows by that PID; -1: it uses no GPU, or there is none. */
static int find(int pid)
{
	struct state *s = process.view.s;
	uint64_t here = own_pid_namespace();

	for (unsigned i = 0; i < s->client_limit && i < MAX_CLIENTS; i++) {
		const struct client *cl = &s->clients[i];
		unsigned known = cl->pid_namespace == here ? cl->pid : atomic_load(&cl->host_pid);

		if (atomic_load(&cl->taken) && known == (unsigned)pid && client_lives(&process.view, i))
			return (int)i;
	}
	return -1;
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
		if (process.view.s->clients[slot].gpus[gpu].shared)
			return true;
	}
	return false;
}

#define FIND(slot, pid)                                  \
	do {                                             \
		CUresult r_ = enter_locked(__func__);    \
		if (r_)                                  \
			return r_;                       \
		slot = find(pid);                        \
		if (slot < 0)                            \
			return CUDA_ERROR_INVALID_VALUE; \
	} while (0)

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	uint64_t deadline = args && args->timeoutMs ? now_ns() + args->timeoutMs * 1000000ull : UINT64_MAX;
	int slot, err;

	FIND(slot, pid);
	err = client_stage(&process.view, (unsigned)slot, STAGE_RUNNING, STAGE_LOCKED);
	if (err || wait_idle((unsigned)slot, deadline))
		return result(err);
	client_stage(&process.view, (unsigned)slot, STAGE_LOCKED, STAGE_RUNNING);
	return CUDA_ERROR_NOT_READY;
}

/* Documented not to be possible with memory that is shared between processes. */
CUresult cuCheckpointProcessCheckpoint(int pid, void *args)
{
	int slot;

	(void)args;
	FIND(slot, pid);
	return shares_memory((unsigned)slot) ? CUDA_ERROR_NOT_SUPPORTED : result(client_save(&process.view, (unsigned)slot));
}

CUresult cuCheckpointProcessRestore(int pid, void *args)
{
	int slot;

	(void)args;
	FIND(slot, pid);
	return result(client_restore(&process.view, (unsigned)slot));
}

CUresult cuCheckpointProcessUnlock(int pid, void *args)
{
	int slot;

	(void)args;
	FIND(slot, pid);
	return result(client_stage(&process.view, (unsigned)slot, STAGE_LOCKED, STAGE_RUNNING));
}

CUresult cuCheckpointProcessGetState(int pid, int *state)
{
	int slot;

	FIND(slot, pid);
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = (int)atomic_load(&process.view.s->clients[slot].stage);
	return CUDA_SUCCESS;
}

/* Any thread will do, as the driver has none of its own here: the process' first. */
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	int slot;

	FIND(slot, pid);
	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	*tid = pid;
	return CUDA_SUCCESS;
}
