#include "process.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "limits.h"
#include "log.h"
#include "slot.h"
#include "turnstate.h"
#include "usage.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* A page that the kernel zeroes in a forked child. So the child has no process state, and its join
 * lock is free, without an atfork handler. */
struct guard {
	_Atomic(struct process *) process;
	lock_t joining;
	pid_t pid;   /* of the process that made the page; 0 in a child if the kernel wipes the page */
	bool wiped;  /* the kernel wipes the page in a child; if not, pid is compared at each call */
};

enum { PAGE = 4096 };

static _Atomic(struct guard *) guard;

static struct guard *new_guard(struct guard *old)
{
	struct guard *g = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (g == MAP_FAILED)
		return NULL;
	g->pid = getpid();
	g->wiped = madvise(g, PAGE, MADV_WIPEONFORK) == 0;
	if (!atomic_compare_exchange_strong_explicit(&guard, &old, g, memory_order_acq_rel, memory_order_acquire)) {
		munmap(g, PAGE);
		return old;
	}
	return g;
}

/* The page of this process. */
static struct guard *own_guard(void)
{
	/* Acquire: its fields were written before it was published. */
	struct guard *g = atomic_load_explicit(&guard, memory_order_acquire);

	if (g && (g->wiped || g->pid == getpid()))
		return g;
	return new_guard(g); /* the process has none yet, or it is a forked child */
}

static bool deny(const char *why)
{
	static _Atomic unsigned once;

	log_line(&once, "CUDA is denied in this process: %s", why);
	return false;
}

static bool take_slot(struct process *p)
{
	int fd = usage_open();
	if (fd < 0)
		return deny(strerror(errno));
	int slot = slot_claim(p->usage, fd);
	if (slot < 0) {
		bool full = errno == ENOSPC;

		close(fd);
		if (full)
			return deny("no space left in the node's directory of usage files, where it would be accounted for");
		return deny("all 960 process slots of this container are taken, or the usage file can't be locked");
	}
	if (owner_start(&p->owner, p->usage, fd, slot))
		return true;
	close(fd); /* this ends the lock, and the slot is free again */
	return deny("no thread could be started to own its process slot");
}

static struct process *join(void)
{
	if (!limits_ready())
		return NULL;
	struct vgpu_usage *usage = usage_map();
	if (!usage)
		return NULL;
	struct process *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	p->pid = getpid();
	p->usage = usage;
	if (turn_start() && take_slot(p))
		return p;
	munmap(p, sizeof(*p));
	return NULL;
}

static struct process *join_once(void)
{
	struct guard *g = own_guard();

	if (!g)
		return NULL;
	lock_take(&g->joining);
	struct process *p = atomic_load_explicit(&g->process, memory_order_relaxed);
	if (!p) {
		p = join();
		/* Release: a thread that loads the pointer reads the complete state. */
		atomic_store_explicit(&g->process, p, memory_order_release);
	}
	lock_give(&g->joining);
	return p;
}

struct process *process_peek(void)
{
	struct guard *g = atomic_load_explicit(&guard, memory_order_acquire);
	/* Acquire: pairs with the release in join_once(). */
	struct process *p = g ? atomic_load_explicit(&g->process, memory_order_acquire) : NULL;

	/* After a fork `wiped` is 0 too, but then the pointer is NULL. */
	return p && (g->wiped || p->pid == getpid()) ? p : NULL;
}

struct process *process_get(void)
{
	struct process *p = process_peek();

	return __builtin_expect(p != NULL, 1) ? p : join_once();
}

int process_slot(void)
{
	struct process *p = process_peek();

	return p && owner_wait(&p->owner) ? (int)(p->owner.slot - p->usage->slots) : -1;
}
