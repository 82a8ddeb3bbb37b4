/* `dying KILLS`: processes of two threads are killed where they hardly get a processor, so that each step of their end takes
 * long. Prints how often the limiter's look at a process (witness.c) missed that it was being killed, of how many looks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "witness.h"

static _Atomic unsigned *owner; /* the number of the second thread */

static void fail(const char *what)
{
	perror(what);
	_exit(1);
}

static void use_processor(int policy)
{
	struct sched_param none = { 0 };
	cpu_set_t all, first;
	int cpu = 0;

	if (sched_getaffinity(0, sizeof(all), &all))
		fail("sched_getaffinity");
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&first);
	CPU_SET(cpu, &first);
	if (sched_setaffinity(0, sizeof(first), &first))
		fail("sched_setaffinity");
	/* At idle priority already, and without a right to leave it: then there is none lower. */
	if (sched_setscheduler(0, policy, &none) && sched_getscheduler(0) != SCHED_IDLE)
		fail("sched_setscheduler");
}

static void *own(void *none)
{
	*owner = (unsigned)syscall(SYS_gettid);
	for (;;)
		pause();
	return none;
}

static pid_t start(int policy, void (*run)(void))
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	use_processor(policy);
	run();
	_exit(1);
}

static void spin(void)
{
	for (;;)
		;
}

static void two_threads(void)
{
	pthread_t other;

	pthread_create(&other, NULL, own, NULL);
	spin();
}

static int has_ended(pid_t pid)
{
	siginfo_t info = { 0 };

	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}

int main(int argc, char **argv)
{
	unsigned long looks = 0, missed = 0;
	pid_t hogs[3];

	owner = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 3; i++)
		hogs[i] = start(SCHED_OTHER, spin);
	for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) {
		struct witness_identity seen;

		*owner = 0;
		pid_t pid = start(SCHED_BATCH, two_threads);
		while (!*owner && !has_ended(pid))
			usleep(100);
		if (has_ended(pid) || witness_identify(pid, &seen) != 1)
			return 1;
		kill(pid, SIGKILL);
		for (int ended = 0; !ended; looks++) {
			bool dying = witness_dying((uint32_t)pid, seen.start_time, *owner);

			ended = has_ended(pid); /* after the look */
			missed += !dying && !ended;
		}
		waitpid(pid, NULL, 0);
	}
	for (int i = 0; i < 3; i++)
		kill(hogs[i], SIGKILL);
	printf("missed %lu of %s\n", missed, looks ? "some" : "none");
	return 0;
}
