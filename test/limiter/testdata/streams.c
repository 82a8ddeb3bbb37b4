/* Streams that end, and launches on several GPUs; the driver is the fake one.
 *
 *   streams ends     launches, and for each line of its input: launches, destroys that stream, or launches into another one
 *   streams captured destroys a stream while it is captured
 *   streams open     launches beside a capture that stays open
 *   streams copies NAME…  calls behind kernels of 5 and 20 ms, with pauses: copies to the host, fills of managed memory, frees;
 *                    and prints what arrives of each, and how often the limiter waited before
 *   streams within NAME…  the same within the GPU's own memory
 *   streams several  launches on several GPUs at once
 */
#include <stdio.h>
#include <string.h>

#include "../../../testdata/simdriver/cuda_api.h"
#include "playedclock.h"

static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*destroy)(void *), (*begin)(void *, int), (*records)(void), (*lost)(void), (*launches)(void);
static int (*several)(void *, unsigned, unsigned);
static void *const stream = (void *)0x1000, *const other = (void *)0x2000;
static char function;

static void one(void *into)
{
	launch(&function, 1, 1, 1, 1, 1, 1, 0, into, NULL, NULL);
}

static void wait_for_line(void)
{
	char line[16];

	printf("?\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		puts("no line");
}

static void ends(void)
{
	for (int i = 0; i < 20; i++) { /* the last ones are short and known: nothing is recorded behind them yet */
		one(stream);
		play_us(20);
	}
	wait_for_line();
	one(other);
	destroy(stream);
	wait_for_line();
	for (int i = 0; i < 200; i++) {
		one(other);
		play_us(200);
	}
	printf("lost %d\n", lost());
}

static void captured(void)
{
	printf("begin %d\n", begin(stream, 0));
	destroy(stream);
	int before = records();
	for (int i = 0; i < 4; i++) {
		one(other);
		play_us(30000);
	}
	printf("recorded %d\n", records() > before);
}

static void open_capture(void)
{
	begin(stream, 0);
	for (int i = 0; i < 4; i++)
		one(other);
	printf("launches %d\n", launches());
}

enum { SMALL = 1000, GPU = 0x150000 };
static const long managed = 1L << 40;
static const CUDA_MEMCPY2D rows[] = {
	{ .dstMemoryType = CU_MEMORYTYPE_HOST, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .WidthInBytes = SMALL, .Height = 1 },
	{ .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = GPU, .srcMemoryType = CU_MEMORYTYPE_HOST, .WidthInBytes = SMALL, .Height = 1 },
};
static const CUDA_MEMCPY2D_v1 old_rows[] = {
	{ .dstMemoryType = CU_MEMORYTYPE_DEVICE, .srcMemoryType = CU_MEMORYTYPE_HOST, .WidthInBytes = SMALL, .Height = 100 },
	{ .dstMemoryType = CU_MEMORYTYPE_DEVICE, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .WidthInBytes = SMALL, .Height = 100 },
};
static const CUDA_MEMCPY3D planes[] = {
	{ .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = SMALL, .srcMemoryType = CU_MEMORYTYPE_ARRAY, .WidthInBytes = SMALL, .Height = 1, .Depth = 1 },
	{ .dstMemoryType = CU_MEMORYTYPE_ARRAY, .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = GPU, .WidthInBytes = SMALL, .Height = 9, .Depth = 9 },
};
static const CUDA_MEMCPY3D_v1 old_planes[] = {
	{ .dstMemoryType = CU_MEMORYTYPE_DEVICE, .srcMemoryType = CU_MEMORYTYPE_HOST, .WidthInBytes = SMALL, .Height = 9, .Depth = 9 },
	{ .dstMemoryType = CU_MEMORYTYPE_DEVICE, .srcMemoryType = CU_MEMORYTYPE_HOST, .WidthInBytes = SMALL, .Height = 9, .Depth = 1 },
};

static long first_argument(const char *name, int within)
{
	int old = !strstr(name, "_v2") && !strstr(name, "Peer");

	if (strstr(name, "cuMemcpy2D"))
		return old ? (long)&old_rows[within] : (long)&rows[within];
	if (strstr(name, "cuMemcpy3D"))
		return old ? (long)&old_planes[within] : (long)&planes[within];
	return within ? GPU : strstr(name, "cuMemset") && strstr(name, "_v2") ? managed : 100000;
}

static void copies(void *cuda, char **names, int within)
{
	long *(*copied)(void) = dlsym(cuda, "fakeCopied");
	int (*synchronised)(void) = dlsym(cuda, "fakeSynchronised");
	float *took = dlsym(cuda, "fakeMilliseconds");

	for (; *names; names++) {
		int (*copy)(long, long, long, long, long) = dlsym(cuda, *names), before = synchronised();
		long first = first_argument(*names, within), third = strstr(*names, "D2D") ? 33 : 300000; /* a value, or a size */

		for (int k = 0; k < 2; k++) {
			*took = k ? 20 : 5;
			one(strstr(*names, "_ptds") ? (void *)2 : NULL);
			copy(first, 200, third, 400000, 500000);
			play_us(50000);
		}
		long *got = copied();
		printf("%s %d: %d %ld %ld %ld %ld\n", *names, synchronised() - before, got[0] == first, got[1], got[2], got[3], got[4]);
	}
}

static void on_several(void)
{
	struct { void *f; unsigned gx, gy, gz, bx, by, bz, shared; void *stream, **params; } list[1] = { { &function, 1, 1, 1, 1, 1, 1, 0, stream, NULL } };

	for (int i = 0; i < 10; i++)
		several(list, 1, 0);
	printf("launches %d\n", launches());
}

int main(int argc, char **argv)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = dlsym(cuda, "cuInit");

	launch = dlsym(cuda, "cuLaunchKernel");
	several = dlsym(cuda, "cuLaunchCooperativeKernelMultiDevice");
	destroy = dlsym(cuda, "cuStreamDestroy_v2");
	begin = dlsym(cuda, "cuStreamBeginCapture_v2");
	records = dlsym(cuda, "fakeRecords");
	lost = dlsym(cuda, "fakeLost");
	launches = dlsym(cuda, "fakeLaunches");
	if (argc < 2 || init(0))
		return 1;
	*(float *)dlsym(cuda, "fakeMilliseconds") = strcmp(argv[1], "ends") ? 20 : 0.02f;
	if (!strcmp(argv[1], "ends"))
		ends();
	else if (!strcmp(argv[1], "captured"))
		captured();
	else if (!strcmp(argv[1], "open"))
		open_capture();
	else if (!strcmp(argv[1], "copies") || !strcmp(argv[1], "within"))
		copies(cuda, argv + 2, *argv[1] == 'w');
	else
		on_several();
	return 0;
}
