/* NVML, as part of probe.c. */
/* Of a GPU or, with mig 0 or more, of one of its MIG devices. */
static void nvml(unsigned long long index, int mig)
{
	void *h = dlopen("libnvidia-ml.so.1", RTLD_NOW), *dev = NULL;
	unsigned long long m[3] = { 0 };
	struct { unsigned version; unsigned long long m[4]; } v2 = { .version = sizeof(v2) | 2u << 24 };

	if (!h) {
		printf("nvml none\n");
		return;
	}
	int (*init)(void) = dlsym(h, "nvmlInit_v2");
	int (*get)(unsigned, void **) = dlsym(h, "nvmlDeviceGetHandleByIndex_v2");
	int (*info)(void *, void *) = dlsym(h, "nvmlDeviceGetMemoryInfo"), (*info2)(void *, void *) = dlsym(h, "nvmlDeviceGetMemoryInfo_v2");
	int (*get_mig)(void *, unsigned, void **) = dlsym(h, "nvmlDeviceGetMigDeviceHandleByIndex");
	init();
	int r = get((unsigned)index, &dev);
	if (!r && mig >= 0)
		r = get_mig(dev, (unsigned)mig, &dev);
	if (!r)
		r = info(dev, m);
	printf("nvml %d total %llu free %llu used %llu\n", r, m[0], m[1], m[2]);
	r = info2(dev, &v2);
	printf("nvml2 %d total %llu free %llu used %llu\n", r, v2.m[0], v2.m[2], v2.m[3]);
}

/* "processes RESULT COUNT: PID PID … " */
static void show_processes(void)
{
	static struct { unsigned pid; unsigned long long used; unsigned gi, ci; } list[64];
	unsigned count = 64;
	void *h = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device = NULL;
	int (*init)(void) = dlsym(h, "nvmlInit_v2"), (*get)(unsigned, void **) = dlsym(h, "nvmlDeviceGetHandleByIndex_v2");
	int (*ask)(void *, unsigned *, void *) = dlsym(h, "nvmlDeviceGetComputeRunningProcesses_v3");
	int r = init() || get(0, &device) ? -1 : ask(device, &count, list);

	printf("processes %d %u: ", r, count);
	for (unsigned i = 0; !r && i < count; i++)
		printf("%u ", list[i].pid);
	printf("\n");
}
