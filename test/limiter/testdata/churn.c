/* Allocates and frees at random until it is stopped: `churn SECONDS SEED LARGEST
 * THREADS`. Prints how often it was given memory or a context and how often refused. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr_t;

static int (*init)(unsigned), (*device)(int *, int), (*retain)(void **, int), (*current)(void *);
static int (*create)(void **, unsigned, int), (*destroy)(void *), (*let_go)(int), device_number;
static int (*alloc)(ptr_t *, size_t), (*managed)(ptr_t *, size_t, unsigned);
static int (*pitched)(ptr_t *, size_t *, size_t, size_t, unsigned), (*release)(ptr_t), (*info)(size_t *, size_t *);

static void *context;
static double seconds;
static size_t largest;
static atomic_ulong given, refused, wrong;

static void *must(void *handle, const char *name)
{
	void *found = dlsym(handle, name);

	if (!found) {
		fprintf(stderr, "churn: %s is missing\n", name);
		exit(3);
	}
	return found;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int take(unsigned *seed, ptr_t *out)
{
	size_t size = 1 + (size_t)rand_r(seed) % largest, pitch;

	switch (rand_r(seed) % 8) {
	case 0: return managed(out, size, 1);
	case 1: return pitched(out, &pitch, 1 + size % 5000, 1 + size / 5000, 4);
	default: return alloc(out, size);
	}
}

/* A context more, with something in it that ends with it; or the primary again. */
static int visit(unsigned *seed)
{
	void *other;
	ptr_t in_it;
	int r;

	if (rand_r(seed) % 2) {
		if ((r = retain(&other, device_number)) == 0 && let_go(device_number))
			atomic_fetch_add(&wrong, 1);
		return r;
	}
	if ((r = create(&other, 0, device_number)))
		return r;
	take(seed, &in_it);
	if (destroy(other))
		atomic_fetch_add(&wrong, 1);
	current(context);
	return 0;
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	ptr_t held[32] = { 0 };
	double until = now() + seconds;

	current(context);
	while (now() < until) {
		ptr_t *place = &held[rand_r(&seed) % 32];
		size_t left, total;

		if (*place) {
			if (release(*place))
				atomic_fetch_add(&wrong, 1);
			*place = 0;
		} else if ((rand_r(&seed) % 8 ? take(&seed, place) : visit(&seed)) == 0) {
			atomic_fetch_add(&given, 1);
		} else {
			atomic_fetch_add(&refused, 1);
			usleep(200);
		}
		if (rand_r(&seed) % 16 == 0 && (info(&left, &total) || left > total))
			atomic_fetch_add(&wrong, 1);
	}
	for (int i = 0; i < 32; i++)
		if (held[i] && release(held[i]))
			atomic_fetch_add(&wrong, 1);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	int count = argc > 4 ? atoi(argv[4]) : 1, dev, r;
	void *h = dlopen("libcuda.so.1", RTLD_NOW);

	if (!h || argc < 4) {
		fprintf(stderr, "churn: %s\n", h ? "SECONDS SEED LARGEST THREADS" : dlerror());
		return 3;
	}
	seconds = atof(argv[1]);
	largest = strtoull(argv[3], NULL, 0);
	init = must(h, "cuInit");
	device = must(h, "cuDeviceGet");
	retain = must(h, "cuDevicePrimaryCtxRetain");
	current = must(h, "cuCtxSetCurrent");
	alloc = must(h, "cuMemAlloc_v2");
	managed = must(h, "cuMemAllocManaged");
	pitched = must(h, "cuMemAllocPitch_v2");
	create = must(h, "cuCtxCreate_v2");
	destroy = must(h, "cuCtxDestroy_v2");
	let_go = must(h, "cuDevicePrimaryCtxRelease_v2");
	release = must(h, "cuMemFree_v2");
	info = must(h, "cuMemGetInfo_v2");
	double until = now() + seconds;
	if ((r = init(0)) == 0 && (r = device(&dev, 0)) == 0)
		while ((r = retain(&context, dev)) == 2 && now() < until) { /* no room: others have it all */
			atomic_fetch_add(&refused, 1);
			usleep(1000);
		}
	device_number = dev;
	if (r == 2) {
		printf("given 0 refused %lu wrong 0\n", refused);
		return 0;
	}
	if (r) {
		fprintf(stderr, "churn: no context: %d\n", r);
		return 4;
	}
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(strtoul(argv[2], NULL, 0) * 64 + (unsigned)i));
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("given %lu refused %lu wrong %lu\n", given, refused, wrong);
	return wrong ? 5 : 0;
}
