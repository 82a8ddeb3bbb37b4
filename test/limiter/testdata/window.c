/* What the limiter's look at a process (witness.c) finds in /proc at one step of its end.
 *
 *   window FLAGS PENDING SHARED FIRST-THREAD CODE
 *
 * FLAGS and PENDING of a thread's stat, SHARED of the process's status, in hexadecimal digits; FIRST-THREAD: R or Z; CODE:
 * with which the process ends.
 * Prints whether it is dying, with the owner thread alive and dead, and whether it is gone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "witness.h"

static char **args;

int open(const char *path, int flags, ...)
{
	int fd = memfd_create(path, 0);
	const char *name = strrchr(path, '/');

	if (!strcmp(name, "/status"))
		dprintf(fd, "Name:\tx\nSigPnd:\t%s\nShdPnd:\t%s\n", "0000000000000000", args[3]);
	else {
		bool thread = strstr(path, "task");

		dprintf(fd, "7 (x) %c 1 1 1 0 -1 %llu 0 0 0 0 0 0 0 0 20 0 2 0 99 0 0 0 0 0 0 0 0 %llu 0 0 0 0 0 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 %s\n",
		    thread ? 'R' : *args[4], strtoull(args[1], NULL, 16), strtoull(args[2], NULL, 16), thread ? "0" : args[5]);
	}
	lseek(fd, 0, SEEK_SET);
	return fd;
}

int main(int argc, char **argv)
{
	args = argv;
	if (argc != 6)
		return 2;
	printf("dying %d %d gone %d\n", witness_dying(7, 99, 8), witness_dying(7, 99, 8 | FUTEX_OWNER_DIED),
	    witness_process_gone(7, 99, witness_visible_namespace()));
	return 0;
}
