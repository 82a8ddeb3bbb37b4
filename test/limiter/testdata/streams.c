/* Streams that end, and launches on several GPUs; the driver is the fake one.
 *
 *   streams ends     launches, and for each line of its input: launches, destroys that stream, or launches into another one
 *   streams captured destroys a stream while it is captured
 *   streams open     launches beside a capture that stays open
 *   streams copies NAME…  calls behind kernels of 5 and 20 ms, with pauses: copies to the host, fills of managed memory, frees;
 *                    and prints what arrives of each, and how often the limiter waited before
 *   streams within NAME…  the same within the GPU's own memory
 *   streams several  launches on several GPUs at once
 *   streams records WHAT  asks for its own events, prepares a record that the limiter does not see, and asks again; and prints how
 *                    often the limiter recorded events of its own
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

/* Kernels of 20 us, and an event of the program behind each, which has happened when it is asked for. */
static int own_records(void *cuda, int rounds)
{
	int (*record)(void *, void *) = dlsym(cuda, "cuEventRecord"), (*query)(void *) = dlsym(cuda, "cuEventQuery"), before = records();
	static void *const event = (void *)0x3f0;

	for (int i = 0; i < rounds; i++) {
		one(stream);
		record(event, stream);
		play_us(30);
		query(event);
	}
	return records() - before - rounds;
}

static void see_records(void *cuda, const char *what)
{
	int (*launch_with)(void *, void *, void *, void *) = dlsym(cuda, "cuLaunchKernelEx");
	int (*find)(const char *, void **, int, unsigned long, int *) = dlsym(cuda, "cuGetProcAddress_v2");
	struct { int id; char value[68]; } attributes[2] = { { .id = 2 }, { .id = strcmp(what, "completion") ? 7 : 12 } };
	CUlaunchConfig config = { .attrs = attributes, .numAttrs = 1 };
	void *variant;

	config.numAttrs += !strcmp(what, "launch") || !strcmp(what, "completion");
	own_records(cuda, 1000);
	int before = own_records(cuda, 1000);
	if (!strcmp(what, "variant"))
		find("cuEventRecord", &variant, 13000, 0, NULL);
	else if (!strcmp(what, "context"))
		((int (*)(void *, void *))dlsym(cuda, "cuCtxRecordEvent"))(NULL, NULL);
	else if (!strcmp(what, "process"))
		((int (*)(void *, void *))dlsym(cuda, "cuIpcGetEventHandle"))(NULL, NULL);
	else
		launch_with(&config, &function, NULL, NULL);
	int then = own_records(cuda, 1000);
	printf("few %d, then few %d\n", before < 20, then < 20);
	fprintf(stderr, "%d %d\n", before, then);
}

/* The end of a stream's work has been shown by events, until another stream is captured. */
static void beside_capture(void *cuda)
{
	own_records(cuda, 200);
	begin(other, 0);
	uint64_t start = played_ns;
	own_records(cuda, 2000);
	printf("waited %d ms\n", (int)((played_ns - start) / 1000000) - 60);
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
	*(float *)dlsym(cuda, "fakeMilliseconds") = strcmp(argv[1], "ends") && strcmp(argv[1], "records") && strcmp(argv[1], "beside") ? 20 : 0.02f;
	if (!strcmp(argv[1], "ends"))
		ends();
	else if (!strcmp(argv[1], "captured"))
		captured();
	else if (!strcmp(argv[1], "open"))
		open_capture();
	else if (!strcmp(argv[1], "beside"))
		beside_capture(cuda);
	else if (!strcmp(argv[1], "records"))
		see_records(cuda, argv[2]);
	else if (!strcmp(argv[1], "copies") || !strcmp(argv[1], "within"))
		copies(cuda, argv + 2, *argv[1] == 'w');
	else
		on_several();
	return 0;
}
