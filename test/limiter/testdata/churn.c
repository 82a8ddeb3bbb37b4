/* Allocates and frees at random until it is stopped: `churn SECONDS SEED LARGEST
 * THREADS [COUNT]`. Prints how many allocations and contexts succeeded and how
 * many were refused. COUNT is a file; its first 8 bytes count the operations of all processes, including killed ones. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr_t;

static int (*init)(unsigned), (*device)(int *, int), (*retain)(void **, int), (*current)(void *);
static int (*create)(void **, unsigned, int), (*destroy)(void *), (*let_go)(int), device_number;
static int (*alloc)(ptr_t *, size_t), (*managed)(ptr_t *, size_t, unsigned);
static int (*pitched)(ptr_t *, size_t *, size_t, size_t, unsigned), (*release)(ptr_t), (*info)(size_t *, size_t *);

static int (*new_stream)(void **, unsigned), (*wait_for)(void *), (*async)(ptr_t *, size_t, void *);
static int (*from)(ptr_t *, size_t, void *, void *), (*release_async)(ptr_t, void *), (*trim)(void *, size_t);
static int (*new_pool)(void **, const void *), (*end_pool)(void *), (*trim_graphs)(int);
static int (*new_graph)(void **, unsigned), (*add)(void **, void *, void **, size_t, void *), (*end_graph)(void *);
static int (*add_free)(void **, void *, void **, size_t, ptr_t);
static int (*make)(void **, void *, unsigned long long), (*launch)(void *, void *), (*unmake)(void *);

static void *context;
static double seconds;
static size_t largest;
static atomic_ulong given, refused, wrong, own_count, *operations = &own_count;

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

struct mine { void *stream, *pool; };
struct props { int type, handles, location, id; char rest[72]; };
struct node { struct props props; void *access; size_t accesses, size; ptr_t ptr; char spare[64]; };

/* A graph that allocates, runs a few times and is gone. */
static int graph(unsigned *seed, struct mine *mine)
{
	struct node node = { .props = { .type = 1, .location = 1, .id = device_number }, .size = 1 + (size_t)rand_r(seed) % largest };
	void *g = NULL, *exec = NULL, *first = NULL, *second = NULL;
	int r = 1;

	if (new_graph(&g, 0) || add(&first, g, NULL, 0, &node) || add_free(&second, g, &first, 1, node.ptr) || make(&exec, g, 0))
		atomic_fetch_add(&wrong, 1);
	else
		for (int i = rand_r(seed) % 4; i >= 0; i--)
			r = launch(exec, mine->stream);
	if (exec && unmake(exec))
		atomic_fetch_add(&wrong, 1);
	end_graph(g);
	if (rand_r(seed) % 2)
		trim_graphs(device_number);
	return r;
}

/* A pool of this thread's is at times another. */
static int pooled(unsigned *seed, struct mine *mine, size_t size, ptr_t *out)
{
	struct props props = { .type = 1, .location = 1, .id = device_number };

	if (mine->pool && rand_r(seed) % 8 == 0) {
		if (end_pool(mine->pool))
			atomic_fetch_add(&wrong, 1);
		mine->pool = NULL;
	}
	if (!mine->pool && new_pool(&mine->pool, &props))
		return 1;
	return mine->pool ? from(out, size, mine->pool, mine->stream) : 1;
}

/* *in_stream: it is to be freed in the stream. */
static int take_any(unsigned *seed, ptr_t *out, struct mine *mine, int *in_stream)
{
	size_t size = 1 + (size_t)rand_r(seed) % largest;

	*in_stream = rand_r(seed) % 8 != 0;
	switch (rand_r(seed) % 4) {
	case 0: return async(out, size, mine->stream);
	case 1: return pooled(seed, mine, size, out);
	case 2: *out = 0; return graph(seed, mine);
	default: return wait_for(mine->stream) || (mine->pool && trim(mine->pool, 0));
	}
}

static int take(unsigned *seed, ptr_t *out, int *in_stream)
{
	size_t size = 1 + (size_t)rand_r(seed) % largest, pitch;

	*in_stream = 0;
	switch (rand_r(seed) % 8) {
	case 0: return managed(out, size, 1);
	case 1: return pitched(out, &pitch, 1 + size % 5000, 1 + size / 5000, 4);
	case 2: *in_stream = 1; return alloc(out, size);
	default: return alloc(out, size);
	}
}

/* A context more, with something in it that ends with it; or the primary again. */
static int visit(unsigned *seed)
{
	void *other;
	ptr_t in_it;
	int r, in_stream;

	if (rand_r(seed) % 2) {
		if ((r = retain(&other, device_number)) == 0 && let_go(device_number))
			atomic_fetch_add(&wrong, 1);
		return r;
	}
	if ((r = create(&other, 0, device_number)))
		return r;
	take(seed, &in_it, &in_stream);
	if (destroy(other))
		atomic_fetch_add(&wrong, 1);
	current(context);
	return 0;
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	ptr_t held[32] = { 0 };
	int in_stream[32] = { 0 };
	struct mine mine = { NULL, NULL };
	double until = now() + seconds;

	current(context);
	if (new_stream(&mine.stream, 1))
		atomic_fetch_add(&wrong, 1);
	while (now() < until) {
		unsigned i = rand_r(&seed) % 32;
		ptr_t *place = &held[i];
		size_t left, total;

		atomic_fetch_add(operations, 1);
		if (*place) {
			if (in_stream[i] ? release_async(*place, mine.stream) : release(*place))
				atomic_fetch_add(&wrong, 1);
			*place = in_stream[i] = 0;
		} else if (rand_r(&seed) % 2) {
			atomic_fetch_add(take_any(&seed, place, &mine, &in_stream[i]) ? &refused : &given, 1);
			if (!*place)
				in_stream[i] = 0;
		} else if ((rand_r(&seed) % 8 ? take(&seed, place, &in_stream[i]) : visit(&seed)) == 0) {
			atomic_fetch_add(&given, 1);
		} else {
			atomic_fetch_add(&refused, 1);
			usleep(200);
		}
		if (rand_r(&seed) % 16 == 0 && (info(&left, &total) || left > total))
			atomic_fetch_add(&wrong, 1);
	}
	for (int i = 0; i < 32; i++)
		if (held[i] && (in_stream[i] ? release_async(held[i], mine.stream) : release(held[i])))
			atomic_fetch_add(&wrong, 1);
	if (mine.pool && end_pool(mine.pool))
		atomic_fetch_add(&wrong, 1);
	wait_for(mine.stream);
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
	if (argc > 5)
		operations = mmap(NULL, sizeof(*operations), PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[5], O_RDWR), 0);
	if (operations == MAP_FAILED)
		return 3;
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
	new_stream = must(h, "cuStreamCreate");
	wait_for = must(h, "cuStreamSynchronize");
	async = must(h, "cuMemAllocAsync");
	from = must(h, "cuMemAllocFromPoolAsync");
	release_async = must(h, "cuMemFreeAsync");
	trim = must(h, "cuMemPoolTrimTo");
	new_pool = must(h, "cuMemPoolCreate");
	end_pool = must(h, "cuMemPoolDestroy");
	trim_graphs = must(h, "cuDeviceGraphMemTrim");
	new_graph = must(h, "cuGraphCreate");
	add = must(h, "cuGraphAddMemAllocNode");
	add_free = must(h, "cuGraphAddMemFreeNode");
	end_graph = must(h, "cuGraphDestroy");
	make = must(h, "cuGraphInstantiateWithFlags");
	launch = must(h, "cuGraphLaunch");
	unmake = must(h, "cuGraphExecDestroy");
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
