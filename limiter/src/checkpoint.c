/* Checkpoints and restores of processes: by the process itself, or by another of its container, mostly a tool
 * (cuda-checkpoint). The driver's state of the process decides whether its bytes count, after each call: a
 * call that failed can have done its work, and one that succeeded can go on (a checkpoint to storage of the
 * caller). A lock of each slot orders what processes of the container do to it, across the driver's call. */
#include <linux/futex.h>
#include <unistd.h>

#include "filelock.h"
#include "hooks.h"
#include "log.h"
#include "process.h"
#include "reserve.h"
#include "suspend.h"
#include "usage.h"
#include "witness.h"

enum { LOCK_US = 1000000 };

struct target {
	struct process *by;
	int pid, fd; /* of the locks; -1: none is needed */
	struct suspended slots; /* none: no process of this container */
};

static void add(struct suspended *slots, struct vgpu_slot *s, const struct witness_identity *identity)
{
	/* Acquire: what the slot's owner wrote before. */
	uint32_t owner = atomic_load_explicit(&s->owner, memory_order_acquire) & ~VGPU_OWNER_SUSPENDED;
	uint64_t start = atomic_load(&s->start_time);

	if (!owner || owner & FUTEX_OWNER_DIED || s->pid != identity->pid || s->pid_ns != identity->pid_ns || start != identity->start_time ||
	    slots->count == SUSPEND_MOST)
		return;
	slots->of[slots->count].slot = s;
	slots->of[slots->count].owner = owner;
	slots->of[slots->count++].start_time = start;
}

static void find(struct vgpu_usage *usage, struct suspended *slots, const struct witness_identity *identity)
{
	uint32_t words = usage_words(usage);

	for (uint32_t word = 0; word < words; word++)
		for (uint64_t bits = usage_word(usage, word); bits;)
			add(slots, &usage->slots[usage_next(word, &bits)], identity);
}

static int64_t lock_of(const struct target *t, int i)
{
	return VGPU_LOCK_SUSPEND(t->slots.of[i].slot - t->by->usage->slots);
}

/* Before close: a child that was forked meanwhile has the description, and with it the locks. */
static CUresult end(const struct target *t, CUresult result)
{
	if (t->fd < 0)
		return result;
	for (int i = 0; i < t->slots.count; i++)
		filelock_give(t->fd, lock_of(t, i));
	close(t->fd);
	return result;
}

/* In the order of the slots, so that of two processes one gets them all. */
static bool lock(struct target *t)
{
	t->fd = usage_open();
	for (int i = 0; t->fd >= 0 && i < t->slots.count; i++)
		if (!filelock_wait(t->fd, lock_of(t, i), LOCK_US))
			return false;
	return t->fd >= 0;
}

static CUresult unknown(void)
{
	static _Atomic unsigned once;

	log_line(&once, "a process can't be checkpointed or restored: /proc does not show which one it is");
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult busy(const struct target *t)
{
	static _Atomic unsigned once;

	log_line(&once, "a process can't be checkpointed or restored: another process is doing it, or the usage file can't be locked");
	return end(t, CUDA_ERROR_NOT_READY);
}

static CUresult begin(struct target *t, int pid)
{
	struct witness_identity identity;

	*t = (struct target){ .by = process_peek(), .pid = pid, .fd = -1 };
	if (!t->by || !owner_wait(&t->by->owner))
		return CUDA_SUCCESS; /* before cuInit: the driver refuses it */
	switch (witness_identify(pid, &identity)) {
	case 0:
		return CUDA_SUCCESS;
	case 1:
		break;
	default:
		return unknown();
	}
	find(t->by->usage, &t->slots, &identity);
	return !t->slots.count || lock(t) ? CUDA_SUCCESS : busy(t);
}

static CUresult state_of(const struct target *t, bool *checkpointed)
{
	int state = -1;
	CUresult result = REAL(cuCheckpointProcessGetState)(t->pid, &state);

	*checkpointed = result == CUDA_SUCCESS && state == CU_PROCESS_STATE_CHECKPOINTED;
	return result;
}

static void mark_if_checkpointed(const struct target *t)
{
	bool checkpointed;

	if (t->slots.count && state_of(t, &checkpointed) == CUDA_SUCCESS && checkpointed)
		suspend_mark_all(&t->slots);
}

CUresult cuCheckpointProcessCheckpoint(int pid, void *args)
{
	struct target t;
	CUresult result = begin(&t, pid);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuCheckpointProcessCheckpoint)(pid, args);
	mark_if_checkpointed(&t);
	return end(&t, result);
}

static CUresult moved(void)
{
	static _Atomic unsigned once;

	log_line(&once, "a checkpointed process can't be restored on other GPUs within memory limits");
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_room(void)
{
	static _Atomic unsigned once;

	log_line(&once, "a checkpointed process can't be restored: the memory limit has no room for what it had");
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The sums are checked also if the slots are not marked: the process that was restoring them can have been killed
 * before it marked them again. */
static CUresult charge(const struct target *t, const CUcheckpointRestoreArgs *args)
{
	bool checkpointed;

	if (args && args->gpuPairsCount)
		return moved();
	CUresult result = state_of(t, &checkpointed);
	if (result != CUDA_SUCCESS)
		return result;
	if (checkpointed)
		return reserve_again(t->by, &t->slots) ? CUDA_SUCCESS : no_room();
	suspend_unmark_all(&t->slots); /* restored from outside of the container */
	return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct target t;
	CUresult result = begin(&t, pid);

	if (result != CUDA_SUCCESS)
		return result;
	if (t.slots.count && (result = charge(&t, args)) != CUDA_SUCCESS)
		return end(&t, result);
	result = REAL(cuCheckpointProcessRestore)(pid, args);
	if (result != CUDA_SUCCESS)
		mark_if_checkpointed(&t);
	return end(&t, result);
}
