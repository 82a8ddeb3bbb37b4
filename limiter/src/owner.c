/* The thread that owns the slot. The kernel tells of its death, whatever the
 * cause, in the robust futex word that it is the owner of. Any thread could own
 * it; only one of our own is sure to live exactly as long as the process. */
#include "process.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader.h"
#include "witness.h"

static void futex_wait(_Atomic uint32_t *word, uint32_t while_value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, NULL, NULL, 0);
}

/* Replaces the thread's robust list by ours: this thread holds no other robust
 * mutex, and so no assumption about libc's layout is needed. */
static bool register_word(struct owner *o)
{
	o->element.next = &o->head.list;
	o->head.list.next = &o->element;
	o->head.futex_offset = (long)((uintptr_t)&o->slot->owner - (uintptr_t)&o->element);
	o->head.list_op_pending = NULL;
	if (syscall(SYS_set_robust_list, &o->head, sizeof(o->head)) != 0)
		return false;
	/* seq_cst: set before any announcement in the slot. */
	atomic_store(&o->slot->owner, (uint32_t)syscall(SYS_gettid));
	return true;
}

static void *own(void *argument)
{
	struct owner *o = argument;

	bool owns = register_word(o);

	/* Release: the word is set for whoever sees it ready. */
	atomic_store_explicit(&o->ready, 1, memory_order_release);
	syscall(SYS_futex, &o->ready, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	if (owns) /* meanwhile the program goes on: reading /proc takes a while */
		atomic_store(&o->slot->start_time, witness_start_time());
	while (owns)
		futex_wait(&o->ready, 1);
	return NULL;
}

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int detach_fn(pthread_t);
typedef int attr_fn(pthread_attr_t *);
typedef int attr_size_fn(pthread_attr_t *, size_t);
typedef int sigmask_fn(int, const sigset_t *, sigset_t *);

/* Small, and larger where the program's thread-local storage needs it. */
static bool create(struct owner *o)
{
	create_fn *start = loader_function("pthread_create");
	detach_fn *detach = loader_function("pthread_detach");
	attr_fn *init = loader_function("pthread_attr_init"), *destroy = loader_function("pthread_attr_destroy");
	attr_size_fn *set_stack = loader_function("pthread_attr_setstacksize");
	pthread_attr_t attr;
	pthread_t thread;

	if (!start || !detach || !init || !destroy || !set_stack || init(&attr) != 0)
		return false;
	set_stack(&attr, 64 * 1024);
	int failed = start(&thread, &attr, own, o) && start(&thread, NULL, own, o);
	destroy(&attr);
	if (!failed)
		detach(thread);
	return !failed;
}

bool owner_start(struct owner *o, struct vgpu_slot *slot)
{
	sigmask_fn *mask = loader_function("pthread_sigmask");
	sigset_t all, before;

	o->slot = slot;
	sigfillset(&all);
	/* libc's mask leaves out its own two signals, or setuid would wait for ever. */
	if (!mask || mask(SIG_SETMASK, &all, &before) != 0)
		return false;
	bool created = create(o);
	mask(SIG_SETMASK, &before, NULL);
	return created;
}

bool owner_wait(struct owner *o)
{
	/* Acquire: pairs with the release in own(). */
	while (!atomic_load_explicit(&o->ready, memory_order_acquire))
		futex_wait(&o->ready, 0);
	return atomic_load(&o->slot->owner) != 0;
}
