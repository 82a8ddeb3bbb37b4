/* A program of NVIDIA's CUDA runtime, and of cuBLAS and NCCL where they are: what they take, and how fast they are.
 *
 *   runtime LIBCUDART LIBCUBLAS LIBNCCL SECONDS FILL_MIB
 *
 * The libraries are paths, or - for none. With FILL_MIB it allocates until it is refused, and allocates and frees twice as
 * much as that with cudaFreeAsync. Prints key=value lines. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
enum { N = 2048, REDUCED = 16 << 20, FLOAT = 7, SUM = 0, OUT_OF_MEMORY = 2, MOST_CHUNKS = 16384 };

static int (*device_count)(int *), (*set_device)(int), (*allocate)(void **, size_t), (*release)(void *);
static int (*release_async)(void *, void *), (*info)(size_t *, size_t *), (*synchronize)(void), (*version)(int *);

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int r, const char *what)
{
	if (!r)
		return;
	printf("failed=%s: %d\n", what, r);
	exit(3);
}

static void *library(const char *path)
{
	void *l = dlopen(path, RTLD_NOW | RTLD_GLOBAL);

	if (l)
		return l;
	printf("failed=%s\n", dlerror());
	exit(4);
}

static void find(void *l, const char *name, void *to)
{
	*(void **)to = dlsym(l, name);
	if (*(void **)to)
		return;
	printf("failed=no %s\n", name);
	exit(4);
}

static double free_mib(void)
{
	size_t available, total;

	must(info(&available, &total), "cudaMemGetInfo");
	return (double)available / (double)MIB;
}

static void fill(size_t limit_mib)
{
	static void *chunks[MOST_CHUNKS];
	int count = 0, r = 0;

	while (count < MOST_CHUNKS && !(r = allocate(&chunks[count], 16 * MIB)))
		count++;
	printf("filled_mib=%d\nrefused=%d\n", 16 * count, r == OUT_OF_MEMORY);
	while (count)
		must(release(chunks[--count]), "cudaFree");
	for (size_t got = 0; got < 2 * limit_mib; got += 256) {
		must(allocate(&chunks[0], 256 * MIB), "cudaMalloc after cudaFreeAsync");
		must(release_async(chunks[0], NULL), "cudaFreeAsync");
		must(synchronize(), "cudaDeviceSynchronize");
	}
	printf("freed_async_mib=%zu\n", 2 * limit_mib);
}

/* Calls a second of the second half: by then the agent's loop has corrected the share. */
static double rate(double seconds, void (*once)(void))
{
	double start = now(), half = 0;
	long count = 0, before = 0;

	while (now() < start + seconds) {
		for (int i = 0; i < 8; i++)
			once();
		must(synchronize(), "cudaDeviceSynchronize");
		count += 8;
		if (!half && now() >= start + seconds / 2) {
			half = now();
			before = count;
		}
	}
	return half ? (double)(count - before) / (now() - half) : 0;
}

static int (*sgemm)(void *, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int);
static int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
static void *blas, *communicator, *a, *b, *c;

static void multiply(void)
{
	static const float one = 1, zero;

	must(sgemm(blas, 0, 0, N, N, N, &one, a, N, b, N, &zero, c, N), "cublasSgemm");
}

static void reduce(void)
{
	must(all_reduce(a, b, REDUCED / 4, FLOAT, SUM, communicator, NULL), "ncclAllReduce");
}

static void use_blas(const char *path, double seconds)
{
	void *l = library(path);
	double before = free_mib();
	int (*create)(void **);

	find(l, "cublasCreate_v2", &create);
	find(l, "cublasSgemm_v2", &sgemm);
	must(create(&blas), "cublasCreate");
	multiply();
	must(synchronize(), "cudaDeviceSynchronize");
	printf("cublas_mib=%.0f\n", before - free_mib());
	printf("sgemm_per_second=%.1f\n", rate(seconds, multiply));
}

static void use_nccl(const char *path, double seconds)
{
	void *l = library(path);
	double before = free_mib();
	int (*create)(void **, int, const int *);
	int zero = 0;

	find(l, "ncclCommInitAll", &create);
	find(l, "ncclAllReduce", &all_reduce);
	must(create(&communicator, 1, &zero), "ncclCommInitAll");
	reduce();
	must(synchronize(), "cudaDeviceSynchronize");
	printf("nccl_mib=%.0f\n", before - free_mib());
	printf("all_reduce_per_second=%.1f\n", rate(seconds, reduce));
}

int main(int argc, char **argv)
{
	int count = 0, v = 0;

	if (argc != 6) {
		fprintf(stderr, "usage: runtime LIBCUDART LIBCUBLAS LIBNCCL SECONDS FILL_MIB\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	void *l = library(argv[1]);
	find(l, "cudaGetDeviceCount", &device_count);
	find(l, "cudaSetDevice", &set_device);
	find(l, "cudaMalloc", &allocate);
	find(l, "cudaFree", &release);
	find(l, "cudaFreeAsync", &release_async);
	find(l, "cudaMemGetInfo", &info);
	find(l, "cudaDeviceSynchronize", &synchronize);
	find(l, "cudaRuntimeGetVersion", &version);
	must(version(&v), "cudaRuntimeGetVersion");
	printf("version=%d.%d\n", v / 1000, v % 1000 / 10);
	must(device_count(&count), "cudaGetDeviceCount");
	must(set_device(0), "cudaSetDevice");
	must(release(NULL), "cudaFree");
	if (atoi(argv[5]))
		fill((size_t)atoi(argv[5]));
	must(allocate(&a, N * N * sizeof(float)), "cudaMalloc");
	must(allocate(&b, N * N * sizeof(float)), "cudaMalloc");
	must(allocate(&c, N * N * sizeof(float)), "cudaMalloc");
	if (strcmp(argv[2], "-"))
		use_blas(argv[2], atof(argv[4]));
	if (strcmp(argv[3], "-"))
		use_nccl(argv[3], atof(argv[4]) / 4);
	printf("done=1\n");
	return 0;
}
