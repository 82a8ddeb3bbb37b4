/* Prints what the driver and NVML report of every device. */
#include "common.h"
#include "show.h"

#include <stdio.h>

static const char *lookup = "dlsym";
static bool no_nvml;

static const struct option_def options[] = {
	{"lookup", &lookup, NULL, "dlsym, getproc or getproc_v2: how to find the driver's functions"},
	{"no-nvml", NULL, &no_nvml, "leave NVML out"},
	{0},
};

static void show(int i)
{
	struct device_facts f;
	CUcontext ctx;
	CUdevice dev;

	must(cu.cuDeviceGet(&dev, i), "cuDeviceGet");
	must(cu.cuDeviceGetName(f.name, sizeof(f.name), dev), "cuDeviceGetName");
	must(cu.cuDeviceGetUuid(&f.uuid, dev), "cuDeviceGetUuid");
	must(cu.cuDeviceTotalMem_v2(&f.total, dev), "cuDeviceTotalMem");
	must(cu.cuDevicePrimaryCtxRetain(&ctx, dev), "cuDevicePrimaryCtxRetain");
	must(cu.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
	must(cu.cuMemGetInfo_v2(&f.info_free, &f.info_total), "cuMemGetInfo");
	show_device(i, &f);
}

int main(int argc, char **argv)
{
	int version, count;

	parse_options(argc, argv, "prints what the driver and NVML report of every device", options);
	cuda_load(lookup);
	must(cu.cuInit(0), "cuInit");
	must(cu.cuDriverGetVersion(&version), "cuDriverGetVersion");
	must(cu.cuDeviceGetCount(&count), "cuDeviceGetCount");
	printf("cuda_version=%d\ndevice_count=%d\n", version, count);
	for (int i = 0; i < count; i++)
		show(i);
	if (!no_nvml)
		show_nvml();
	return EXIT_FINE;
}
