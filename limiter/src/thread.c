#include "thread.h"

#include <pthread.h>
#include <signal.h>

#include "loader.h"

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int detach_fn(pthread_t);
typedef int attr_fn(pthread_attr_t *);
typedef int attr_size_fn(pthread_attr_t *, size_t);
typedef int sigmask_fn(int, const sigset_t *, sigset_t *);

static bool create(void *(*run)(void *), void *argument, size_t stack)
{
	create_fn *start = loader_function("pthread_create");
	detach_fn *detach = loader_function("pthread_detach");
	attr_fn *init = loader_function("pthread_attr_init"), *destroy = loader_function("pthread_attr_destroy");
	attr_size_fn *set_stack = loader_function("pthread_attr_setstacksize");
	pthread_attr_t attr;
	pthread_t thread;

	if (!start || !detach || !init || !destroy || !set_stack || init(&attr) != 0)
		return false;
	set_stack(&attr, stack);
	int failed = start(&thread, &attr, run, argument) && start(&thread, NULL, run, argument);
	destroy(&attr);
	if (!failed)
		detach(thread);
	return !failed;
}

bool thread_start(void *(*run)(void *), void *argument, size_t stack)
{
	sigmask_fn *mask = loader_function("pthread_sigmask");
	sigset_t all, before;

	sigfillset(&all);
	/* libc's mask omits its own two signals; if they were blocked, setuid would never return. */
	if (!mask || mask(SIG_SETMASK, &all, &before) != 0)
		return false;
	bool created = create(run, argument, stack);
	mask(SIG_SETMASK, &before, NULL);
	return created;
}
