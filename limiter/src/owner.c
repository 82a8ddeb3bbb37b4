/* The thread that owns the slot. When it dies, whatever the cause, the kernel marks the robust
 * futex word that it owns. Any thread could own the word; only the limiter's own thread is sure to
 * live exactly as long as the process. */
#include "process.h"

#include <limits.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "filelock.h"
#include "log.h"
#include "slot.h"
#include "thread.h"
#include "turnends.h"
#include "usage.h"
#include "witness.h"

enum state { STARTING, OWNS, DENIED };
enum { STACK_BYTES = 64 * 1024 };

static void futex_wait(_Atomic uint32_t *word, uint32_t while_value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, NULL, NULL, 0);
}

/* Replaces the thread's robust list by the owner's: this thread holds no other robust mutex, so no
 * assumption about libc's layout is needed. The kernel ignores a word that contains another
 * thread's number. */
static bool register_word(struct owner *o)
{
	o->element.next = &o->head.list;
	o->head.list.next = &o->element;
	o->head.futex_offset = (long)((uintptr_t)&o->slot->owner - (uintptr_t)&o->element);
	o->head.list_op_pending = NULL;
	return syscall(SYS_set_robust_list, &o->head, sizeof(o->head)) == 0;
}

static bool file_of(int fd, uint64_t *dev, uint64_t *ino)
{
	struct stat file; /* not by libc's fstat, which has a version of its own since 2.33 */

	if (syscall(SYS_fstat, fd, &file) != 0)
		return false;
	*dev = file.st_dev;
	*ino = file.st_ino;
	return true;
}

/* Whether the program has left o->fd open, or has another file there. */
static bool has_fd(const struct owner *o)
{
	uint64_t dev, ino;

	return file_of(o->fd, &dev, &ino) && dev == o->dev && ino == o->ino;
}

/* The slot became another process's after the program had closed fd. This process must release the
 * slot's byte, or the lock would outlive the slot's owner; but fd may be another file by now,
 * which must not be unlocked. */
static bool claim_another(struct owner *o)
{
	int fresh = usage_open();

	if (fresh < 0)
		return false;
	if (has_fd(o))
		filelock_give(o->fd, VGPU_LOCK_SLOT(o->slot - o->usage->slots));
	o->fd = fresh;
	int slot = slot_claim(o->usage, fresh);
	if (slot < 0) {
		close(fresh);
		return false;
	}
	o->slot = &o->usage->slots[slot];
	return true;
}

static bool own_some_slot(struct owner *o)
{
	/* In this order: when a thread owns the word, the word is already on its list. */
	while (register_word(o)) {
		if (slot_own(o->usage, o->slot))
			return true;
		if (!claim_another(o))
			return false;
	}
	return false;
}

static void *own(void *argument)
{
	static _Atomic unsigned once;
	struct owner *o = argument;
	bool owns = own_some_slot(o);

	if (!owns)
		log_line(&once, "CUDA is denied in this process: it could not own a process slot of this container");
	/* Release: a thread that reads the state reads word and slot. */
	atomic_store_explicit(&o->state, owns ? OWNS : DENIED, memory_order_release);
	syscall(SYS_futex, &o->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	if (owns) /* after the state, so that the program does not wait for /proc */
		atomic_store(&o->slot->start_time, witness_start_time());
	while (owns) {
		futex_wait(&turn_beating, 0);
		clock_nap_ns(TURN_BEAT_NS);
		turn_beat();
	}
	return NULL;
}

bool owner_start(struct owner *o, struct vgpu_usage *usage, int fd, int slot)
{
	o->usage = usage;
	o->slot = &usage->slots[slot];
	o->fd = fd;
	return file_of(fd, &o->dev, &o->ino) && thread_start(own, o, STACK_BYTES);
}

bool owner_wait(struct owner *o)
{
	uint32_t state;

	/* Acquire: pairs with the release in own(). */
	while ((state = atomic_load_explicit(&o->state, memory_order_acquire)) == STARTING)
		futex_wait(&o->state, STARTING);
	return state == OWNS;
}

/* The lock on a new description ends with this process, even if a child that was forked meanwhile
 * lives on; so it is the first choice. The slot's own is one for all threads of this process. */
struct borrowed owner_borrow(struct owner *o)
{
	int fd = usage_open();

	if (__builtin_expect(fd >= 0, 1) || !owner_wait(o) || lock_mine(&o->lent))
		return (struct borrowed){ fd, false };
	lock_take(&o->lent);
	if (has_fd(o))
		return (struct borrowed){ o->fd, true };
	lock_give(&o->lent);
	return (struct borrowed){ -1, false };
}

void owner_return(struct owner *o, struct borrowed b)
{
	if (b.fd < 0)
		return;
	/* Also before close: a child that was forked meanwhile has the description, and with it the lock. */
	filelock_give(b.fd, VGPU_LOCK_SLOW);
	if (b.own)
		lock_give(&o->lent);
	else
		close(b.fd);
}
