/* meminfo for a program that is linked with libcuda.so.1 and calls it by plain symbols. */
#include "show.h"

#include <stdio.h>
#include <stdlib.h>

static void must(CUresult r, const char *what)
{
	const char *name = "unknown error";

	if (!r)
		return;
	cuGetErrorName(r, &name);
	printf("error=%s\nfailed=%s\n", name, what);
	exit(3);
}

static void show(int i)
{
	struct device_facts f;
	CUcontext ctx;
	CUdevice dev;

	must(cuDeviceGet(&dev, i), "cuDeviceGet");
	must(cuDeviceGetName(f.name, sizeof(f.name), dev), "cuDeviceGetName");
	must(cuDeviceGetUuid_v2(&f.uuid, dev), "cuDeviceGetUuid");
	must(cuDeviceTotalMem_v2(&f.total, dev), "cuDeviceTotalMem");
	must(cuDevicePrimaryCtxRetain(&ctx, dev), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
	must(cuMemGetInfo_v2(&f.info_free, &f.info_total), "cuMemGetInfo");
	show_device(i, &f);
}

int main(int argc, char **argv)
{
	int count;

	if (argc > 1) {
		fprintf(stderr, "%s takes no arguments; prints the driver's properties of every device\n", argv[0]);
		return 2;
	}
	must(cuInit(0), "cuInit");
	must(cuDeviceGetCount(&count), "cuDeviceGetCount");
	printf("device_count=%d\n", count);
	for (int i = 0; i < count; i++)
		show(i);
	return 0;
}
