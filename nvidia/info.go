package nvidia

/*
#cgo linux LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

// As in nvml.h.
struct sample {
	unsigned long long stamp;
	unsigned int pid, sm, memory, encoder, decoder, jpeg, optical_flow;
};
struct info {
	unsigned int version, count;
	unsigned long long last_seen;
	struct sample *samples;
};

enum { NVML_SUCCESS = 0, NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

// go-nvml has loaded the library with its names for all.
static int processes_info(const char *uuid, unsigned long long last_seen, struct sample *samples, unsigned int *count)
{
	int (*find)(const char *, void **) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetHandleByUUID");
	int (*ask)(void *, struct info *) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetProcessesUtilizationInfo");
	struct info info = {
		.version = sizeof(struct info) | 1u << 24, .count = *count, .last_seen = last_seen, .samples = samples,
	};
	void *device;
	int r;

	if (!find || !ask)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = find(uuid, &device);
	if (r != NVML_SUCCESS)
		return r;
	r = ask(device, &info);
	*count = info.count;
	return r;
}
*/
import "C"

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// mostSamples is more than a GPU has in staleSample.
const mostSamples = 1 << 16

// processesInfo is nvmlDeviceGetProcessesUtilizationInfo: go-nvml v0.13.4 passes neither the room for samples nor the time.
func processesInfo(uuid string, since uint64) ([]timeSample, nvml.Return) {
	name := append([]byte(uuid), 0)
	var buffer []C.struct_sample
	for range utilizationTries {
		count := C.uint(len(buffer))
		ret := nvml.Return(C.processes_info((*C.char)(unsafe.Pointer(&name[0])), C.ulonglong(since), unsafe.SliceData(buffer), &count))
		switch {
		case ret == nvml.ERROR_INSUFFICIENT_SIZE && count <= mostSamples:
			buffer = make([]C.struct_sample, count+16) // others may begin
			continue
		case ret != nvml.SUCCESS || int(count) > len(buffer):
			return nil, ret
		}
		samples := make([]timeSample, 0, count)
		for _, s := range buffer[:count] {
			samples = append(samples, timeSample{pid: uint32(s.pid), percent: uint32(s.sm), stamp: uint64(s.stamp)})
		}
		return samples, nvml.SUCCESS
	}
	return nil, nvml.ERROR_INSUFFICIENT_SIZE
}
