package nvidia

/*
#cgo linux LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>

// As NVIDIA documents them for driver 615; go-nvml does not have them.
struct set_limits {
	const char *name_space;
	unsigned long long soft, hard;
};
struct get_limits {
	const char *name_space;
	unsigned long long soft, hard, used;
};
_Static_assert(sizeof(struct set_limits) == 24 && sizeof(struct get_limits) == 32, "the driver's sizes");

enum { NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

// go-nvml has loaded the library with its names for all.
static int call_with(const char *function, const char *uuid, void *limits)
{
	int (*find)(const char *, void **) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetHandleByUUID");
	int (*call)(void *, void *) = dlsym(RTLD_DEFAULT, function);
	void *device;
	int r;

	if (!find || !call)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = find(uuid, &device);
	return r ? r : call(device, limits);
}

static int set_memory_limits(const char *uuid, const char *cgroup, unsigned long long hard)
{
	struct set_limits limits = {cgroup, 0, hard};

	return call_with("nvmlDeviceSetMemoryLimits_v1", uuid, &limits);
}

static int get_memory_limits(const char *uuid, const char *cgroup, struct get_limits *limits)
{
	limits->name_space = cgroup;
	return call_with("nvmlDeviceGetMemoryLimits_v1", uuid, limits);
}
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

type MemoryLimit = hardware.MemoryLimit

const (
	setLimitsSymbol = "nvmlDeviceSetMemoryLimits_v1"
	getLimitsSymbol = "nvmlDeviceGetMemoryLimits_v1"
)

// SetMemoryLimit sets the driver's hard limit of a control group (the path of its directory) on a GPU, and no soft one;
// [hardware.NoMemoryLimit] removes it. The group must exist.
// The driver's success proves nothing: read it back.
func (c *Cache) SetMemoryLimit(ctx context.Context, uuid, cgroup string, hard uint64) error {
	return c.withLimits(ctx, uuid, cgroup, func(uuid, cgroup *C.char) error {
		return check("GPU "+C.GoString(uuid), setLimitsSymbol, nvml.Return(C.set_memory_limits(uuid, cgroup, C.ulonglong(hard))))
	})
}

// MemoryLimit reads the driver's limit of a control group on a GPU. A driver can answer NOT_FOUND or NOT_SUPPORTED for a
// group without a limit.
func (c *Cache) MemoryLimit(ctx context.Context, uuid, cgroup string) (limit MemoryLimit, err error) {
	err = c.withLimits(ctx, uuid, cgroup, func(uuid, cgroup *C.char) error {
		var out C.struct_get_limits
		ret := nvml.Return(C.get_memory_limits(uuid, cgroup, &out))
		limit = MemoryLimit{Soft: uint64(out.soft), Hard: uint64(out.hard), Used: uint64(out.used)}
		return check("GPU "+C.GoString(uuid), getLimitsSymbol, ret)
	})
	if err != nil {
		return MemoryLimit{}, err
	}
	return limit, nil
}

func (c *Cache) withLimits(ctx context.Context, uuid, cgroup string, call func(uuid, cgroup *C.char) error) error {
	if strings.ContainsRune(uuid+cgroup, 0) {
		return fmt.Errorf("memory limits of %q: a name has a zero byte", cgroup)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if !c.open {
		return errors.New("memory limits: NVML is not open")
	}
	cUUID, cCgroup := append([]byte(uuid), 0), append([]byte(cgroup), 0)
	return call((*C.char)(unsafe.Pointer(&cUUID[0])), (*C.char)(unsafe.Pointer(&cCgroup[0])))
}
