/* Threads that all read the limit, and one that prints it:
 *
 *   follow THREADS
 *
 * Prints the total memory of the device for each line of its input. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuMemGetInfo_v2(size_t *, size_t *);

static void *context;
static atomic_int ended;

static void *look(void *arg)
{
	size_t free, total;

	(void)arg;
	cuCtxSetCurrent(context);
	while (!ended)
		cuMemGetInfo_v2(&free, &total);
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	pthread_t threads[64];
	size_t free, total;
	char line[16];

	if (count > 64 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 1;
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, look, NULL);
	while (fgets(line, sizeof(line), stdin)) {
		if (cuMemGetInfo_v2(&free, &total))
			return 1;
		printf("total %zu\n", total);
		fflush(stdout);
	}
	ended = 1;
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
