/* Threads that make a GPU's primary context come and go: `primary SECONDS THREADS
 * [reset]`. Prints how often it was had and refused; when all have let go, waits
 * for its input to end, so that what is still charged can be looked at. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int (*retain)(void **, int), (*let_go)(int), (*reset)(int);
static double seconds;
static int resets;
static atomic_ulong had, refused, wrong;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	double until = now() + seconds;

	while (now() < until) {
		void *context;
		int r = retain(&context, 0);

		if (r) {
			atomic_fetch_add(r == 2 ? &refused : &wrong, 1);
			usleep(50);
			continue;
		}
		atomic_fetch_add(&had, 1);
		if (rand_r(&seed) % 4 == 0)
			usleep(rand_r(&seed) % 100);
		if (resets && rand_r(&seed) % 8 == 0 && reset(0))
			atomic_fetch_add(&wrong, 1);
		if (let_go(0))
			atomic_fetch_add(&wrong, 1);
		if (rand_r(&seed) % 4 == 0)
			usleep(rand_r(&seed) % 100);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[16];
	void *h = dlopen("libcuda.so.1", RTLD_NOW);

	if (!h || argc < 3)
		return 3;
	seconds = atof(argv[1]);
	int count = atoi(argv[2]);
	resets = argc > 3;
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(h, "cuInit");
	retain = (int (*)(void **, int))dlsym(h, "cuDevicePrimaryCtxRetain");
	let_go = (int (*)(int))dlsym(h, "cuDevicePrimaryCtxRelease_v2");
	reset = (int (*)(int))dlsym(h, "cuDevicePrimaryCtxReset_v2");
	if (init(0))
		return 4;
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(getpid() * 16 + i));
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("had %lu refused %lu wrong %lu\n", had, refused, wrong);
	fflush(stdout);
	while (getchar() != EOF)
		;
	return wrong ? 5 : 0;
}
