#define _GNU_SOURCE
#include "show.h"

#include "../simdriver/nvml_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void show_device(int i, const struct device_facts *f)
{
	printf("device.%d.name=%s\ndevice.%d.uuid=GPU-", i, f->name, i);
	for (int b = 0; b < 16; b++) {
		if (b == 4 || b == 6 || b == 8 || b == 10)
			putchar('-');
		printf("%02x", (unsigned char)f->uuid.bytes[b]);
	}
	printf("\ndevice.%d.total_bytes=%zu\n", i, f->total);
	printf("device.%d.info_free_bytes=%zu\ndevice.%d.info_total_bytes=%zu\n", i, f->info_free, i, f->info_total);
}

struct nvml_calls {
	nvmlReturn_t (*init)(void);
	nvmlReturn_t (*count)(unsigned *);
	nvmlReturn_t (*handle)(unsigned, nvmlDevice_t *);
	nvmlReturn_t (*uuid)(nvmlDevice_t, char *, unsigned);
	nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *);
	nvmlReturn_t (*memory_v2)(nvmlDevice_t, nvmlMemory_v2_t *);
	nvmlReturn_t (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
	nvmlReturn_t (*most_migs)(nvmlDevice_t, unsigned *);
	nvmlReturn_t (*mig)(nvmlDevice_t, unsigned, nvmlDevice_t *);
	nvmlReturn_t (*name)(nvmlDevice_t, char *, unsigned);
};

static int find_calls(struct nvml_calls *n)
{
	void *handle = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	*n = (struct nvml_calls){0};
	if (!handle)
		return 0;
	*(void **)&n->init = dlsym(handle, "nvmlInit_v2");
	*(void **)&n->count = dlsym(handle, "nvmlDeviceGetCount_v2");
	*(void **)&n->handle = dlsym(handle, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&n->uuid = dlsym(handle, "nvmlDeviceGetUUID");
	*(void **)&n->memory = dlsym(handle, "nvmlDeviceGetMemoryInfo");
	*(void **)&n->memory_v2 = dlsym(handle, "nvmlDeviceGetMemoryInfo_v2");
	*(void **)&n->processes = dlsym(handle, "nvmlDeviceGetComputeRunningProcesses_v3");
	*(void **)&n->most_migs = dlsym(handle, "nvmlDeviceGetMaxMigDeviceCount");
	*(void **)&n->mig = dlsym(handle, "nvmlDeviceGetMigDeviceHandleByIndex");
	*(void **)&n->name = dlsym(handle, "nvmlDeviceGetName");
	return n->init && n->count && n->handle && n->uuid && n->memory && n->memory_v2 && n->processes &&
	       n->most_migs && n->mig && n->name;
}

static void show_processes(const struct nvml_calls *n, nvmlDevice_t device, unsigned i)
{
	unsigned count = 4096;
	nvmlProcessInfo_t *list = calloc(count, sizeof(*list));

	if (list && !n->processes(device, &count, list)) {
		printf("nvml.%u.processes=%u\n", i, count);
		for (unsigned p = 0; p < count; p++)
			printf("nvml.%u.process.%u=%llu\n", i, list[p].pid, list[p].usedGpuMemory);
	}
	free(list);
}

/* Nothing of a GPU that is not in MIG mode. */
static void show_migs(const struct nvml_calls *n, nvmlDevice_t device, unsigned i)
{
	unsigned most, count = 0;
	nvmlDevice_t mig;
	nvmlMemory_t m;
	char text[128];

	if (n->most_migs(device, &most) || most == 0)
		return;
	for (unsigned at = 0; at < most; at++) {
		if (n->mig(device, at, &mig))
			continue;
		if (!n->uuid(mig, text, sizeof(text)))
			printf("nvml.%u.mig.%u.uuid=%s\n", i, count, text);
		if (!n->name(mig, text, sizeof(text)))
			printf("nvml.%u.mig.%u.name=%s\n", i, count, text);
		if (!n->memory(mig, &m))
			printf("nvml.%u.mig.%u.total_bytes=%llu\n", i, count, m.total);
		count++;
	}
	printf("nvml.%u.mig_count=%u\n", i, count);
}

static void show_nvml_device(const struct nvml_calls *n, unsigned i)
{
	nvmlMemory_v2_t m2 = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)};
	nvmlMemory_t m;
	nvmlDevice_t device;
	char uuid[96];

	if (n->handle(i, &device))
		return;
	if (!n->uuid(device, uuid, sizeof(uuid)))
		printf("nvml.%u.uuid=%s\n", i, uuid);
	if (!n->memory(device, &m)) {
		printf("nvml.%u.total_bytes=%llu\nnvml.%u.used_bytes=%llu\n", i, m.total, i, m.used);
		printf("nvml.%u.free_bytes=%llu\n", i, m.free);
	}
	if (!n->memory_v2(device, &m2)) {
		printf("nvml.%u.v2.total_bytes=%llu\nnvml.%u.v2.used_bytes=%llu\n", i, m2.total, i, m2.used);
		printf("nvml.%u.v2.free_bytes=%llu\nnvml.%u.v2.reserved_bytes=%llu\n", i, m2.free, i, m2.reserved);
	}
	show_processes(n, device, i);
	show_migs(n, device, i);
}

void show_nvml(void)
{
	struct nvml_calls n;
	unsigned count;
	nvmlReturn_t r;

	if (!find_calls(&n))
		return;
	r = n.init();
	printf("nvml.init=%d\n", (int)r);
	if (r || n.count(&count))
		return;
	printf("nvml.device_count=%u\n", count);
	for (unsigned i = 0; i < count; i++)
		show_nvml_device(&n, i);
}
