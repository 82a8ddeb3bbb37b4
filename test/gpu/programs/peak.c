/* Samples the GPU memory that NVML reports for process trees, until every PID has ended:
 * peak [--ms N] PID...
 * "peak_bytes" is the highest sum of those PIDs and their descendants; "samples" is the number
 * of samples. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../testdata/simdriver/nvml_api.h"

static int parent_of(int pid)
{
	char path[64], text[1024], *at;
	int parent = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return 0;
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	fclose(f);
	at = strrchr(text, ')');
	if (at)
		sscanf(at + 2, "%*c %d", &parent);
	return parent;
}

static int is_ours(int pid, char **pids, int count)
{
	for (int hops = 0; pid > 1 && hops < 16; pid = parent_of(pid), hops++)
		for (int i = 0; i < count; i++)
			if (atoi(pids[i]) == pid)
				return 1;
	return 0;
}

int main(int argc, char **argv)
{
	int ms = 5, first = 1;
	unsigned long long peak = 0, samples = 0;

	if (argc > 2 && !strcmp(argv[1], "--ms")) {
		ms = atoi(argv[2]);
		first = 3;
	}
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlReturn_t (*init)(void) = nvml ? dlsym(nvml, "nvmlInit_v2") : NULL;
	nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *) = nvml ? dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2") : NULL;
	nvmlReturn_t (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) =
		nvml ? dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3") : NULL;
	nvmlDevice_t device;

	if (!init || !by_index || !processes || init() || by_index(0, &device)) {
		fprintf(stderr, "peak: no NVML\n");
		return 4;
	}
	for (int alive = 1; alive;) {
		static nvmlProcessInfo_t list[4096];
		unsigned count = 4096;
		unsigned long long sum = 0;

		alive = 0;
		for (int i = first; i < argc; i++)
			alive |= !kill(atoi(argv[i]), 0) || errno == EPERM;
		if (!processes(device, &count, list)) {
			for (unsigned p = 0; p < count; p++)
				if (is_ours((int)list[p].pid, argv + first, argc - first))
					sum += list[p].usedGpuMemory;
			peak = sum > peak ? sum : peak;
			samples++;
		}
		usleep((unsigned)ms * 1000);
	}
	printf("peak_bytes=%llu\nsamples=%llu\n", peak, samples);
	return 0;
}
