/* What the start of a program costs under each of several preloads, in turn:
 *
 *   start ROUNDS PROGRAM PRELOAD...     ("-": none)
 *
 * Prints for each "preload min p50 p99" in nanoseconds, from the spawn to the end. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
enum { MOST = 8 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int rising(const void *a, const void *b)
{
	return *(const double *)a < *(const double *)b ? -1 : 1;
}

static double once(char *program, const char *preload)
{
	char *argv[] = { program, NULL };
	int status = 1;
	pid_t pid;

	if (strcmp(preload, "-"))
		setenv("LD_PRELOAD", preload, 1);
	else
		unsetenv("LD_PRELOAD");
	double from = now();
	if (posix_spawn(&pid, program, NULL, NULL, argv, environ) || waitpid(pid, &status, 0) != pid || status) {
		fprintf(stderr, "start: %s with %s: %d\n", program, preload, status);
		exit(1);
	}
	return now() - from;
}

int main(int argc, char **argv)
{
	int rounds = atoi(argv[1]), kinds = argc - 3;
	double *took[MOST];

	for (int k = 0; k < kinds; k++)
		took[k] = malloc((size_t)rounds * sizeof(double));
	for (int i = 0; i < rounds; i++)
		for (int k = 0; k < kinds; k++) {
			int turn = (k + i) % kinds;

			took[turn][i] = once(argv[2], argv[3 + turn]);
		}
	for (int k = 0; k < kinds; k++) {
		qsort(took[k], (size_t)rounds, sizeof(double), rising);
		printf("%s %.0f %.0f %.0f\n", argv[3 + k], took[k][0], took[k][rounds / 2], took[k][rounds * 99 / 100]);
	}
	return 0;
}
