package oci

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// The variables that a container gets. Names, units and meanings are HAMi's
// (github.com/Project-HAMi/HAMi, server.go of its device plugin, and HAMi-core's
// README), so that what people wrote for HAMi reads the same here.
const (
	// EnvVisibleDevices tells NVIDIA's container runtime what to inject.
	EnvVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// EnvMemoryLimit is every GPU's limit, "<MiB>m"; with "_<i>" appended, the
	// limit of the container's i-th GPU.
	EnvMemoryLimit = "CUDA_DEVICE_MEMORY_LIMIT"
	// EnvCoreLimit is every GPU's share of compute time in percent, 0 for none;
	// with "_<i>" appended, that of the container's i-th GPU.
	EnvCoreLimit = "CUDA_DEVICE_SM_LIMIT"
	// EnvSharedCache is the path of the usage file.
	EnvSharedCache = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	// EnvOversubscribe is "true" where allocations may spill to host memory.
	EnvOversubscribe = "CUDA_OVERSUBSCRIBE"
	// EnvCorePolicy is a CorePolicy.
	EnvCorePolicy = "GPU_CORE_UTILIZATION_POLICY"
	// EnvTaskPriority is "0" (high) or "1" (low).
	EnvTaskPriority = "CUDA_TASK_PRIORITY"
	// EnvDisableControl switched HAMi's limiter off. Here a user can do that only
	// where the operator lets him (Container.NoLimiter).
	EnvDisableControl = "CUDA_DISABLE_CONTROL"
	// EnvRedirect made HAMi-core load another libcuda.
	EnvRedirect = "CUDA_REDIRECT"
)

// visibleVoid is the value of NVIDIA_VISIBLE_DEVICES that makes NVIDIA's runtime
// do nothing at all ("none" still injects the driver).
const visibleVoid = "void"

// taskPriority is every container's, as CUDA_TASK_PRIORITY and the limits file
// have it: low, as HAMi-core reads an unset one. What a container says of itself
// is not believed, as a high priority is paid by its neighbours; a grant that
// carries one is to replace this.
const taskPriority = limiter.PriorityLow

// OwnedEnv says whether a variable is ours in a container with a grant: what the
// user or the image set for it is replaced.
func OwnedEnv(name string) bool {
	switch name {
	case EnvVisibleDevices, EnvSharedCache, EnvOversubscribe, EnvCorePolicy, EnvTaskPriority,
		EnvDisableControl, EnvRedirect, EnvMemoryLimit, EnvCoreLimit:
		return true
	}
	_, indexed := limitIndex(name)
	return indexed
}

// limitIndex returns the index in the name of a GPU's limit variable, and whether the variable
// is one.
func limitIndex(name string) (index string, is bool) {
	if index, is = strings.CutPrefix(name, EnvMemoryLimit+"_"); is {
		return index, true
	}
	return strings.CutPrefix(name, EnvCoreLimit+"_")
}

// checkLimitNames refuses limit variables with an index that no GPU of a container can have.
// Nothing reads them, and to edit each would let a container choose the size of the answer.
func checkLimitNames(env []string) error {
	for _, e := range env {
		name, _, hasValue := strings.Cut(e, "=")
		index, is := limitIndex(name)
		if !is || !hasValue {
			continue
		}
		if i, err := strconv.Atoi(index); err != nil || i < 0 || i >= limiter.MaxDevices || strconv.Itoa(i) != index {
			return fmt.Errorf("its environment sets %.80q, the limit of a GPU that it can't have: the index is 0 to %d; remove the variable", name, limiter.MaxDevices-1)
		}
	}
	return nil
}

// environment is what a container with a grant gets, in the order that a person
// reads it. Each name comes once.
func environment(shares []grant.Share, s Settings, c Container, way Injection) []string {
	v := variables{index: map[string]int{}}

	v.set(EnvVisibleDevices, visibleDevices(shares, way))
	if way == InjectEnvvar && !s.Graphics {
		v.set(EnvDriverCapabilities, driverCapabilities(c))
	}
	for i, share := range shares {
		v.set(indexed(EnvMemoryLimit, i), mebibytes(share.MemoryMiB))
	}
	// HAMi-core reads the plain name as every GPU's, so it is followed by one for
	// each GPU, also where that says "not limited".
	v.set(EnvCoreLimit, strconv.Itoa(shares[0].CorePercent))
	for i, share := range shares {
		v.set(indexed(EnvCoreLimit, i), strconv.Itoa(share.CorePercent))
	}
	v.set(EnvSharedCache, limiter.ContainerUsagePath)
	if slices.ContainsFunc(shares, func(share grant.Share) bool { return s.oversubscribed(share.UUID) }) {
		v.set(EnvOversubscribe, "true")
	}
	if s.corePolicy() != CoreDefault {
		v.set(EnvCorePolicy, string(s.corePolicy()))
	}

	for _, name := range c.requested() {
		v.set(name, visibleDevices(shares, way))
	}
	for _, name := range strayEnv(c.Env) {
		if _, done := v.index[name]; !done {
			v.set(name, neutral(name, shares, s, c))
		}
	}
	return v.list
}

// strayEnv is what a container set of the variables that are ours, sorted.
func strayEnv(env []string) []string {
	var names []string
	for _, e := range env {
		if name, _, ok := strings.Cut(e, "="); ok && OwnedEnv(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// neutral is the value that a variable gets which the container set and the
// grant has nothing for. It is overwritten rather than removed: NRI hands no
// removal to the runtime without an addition.
func neutral(name string, shares []grant.Share, s Settings, c Container) string {
	switch name {
	case EnvMemoryLimit:
		// Every GPU's limit where no indexed one is read: no more than any has.
		return mebibytes(smallest(shares))
	case EnvCorePolicy:
		return string(s.corePolicy())
	case EnvTaskPriority:
		return strconv.Itoa(int(taskPriority))
	case EnvDisableControl:
		return strconv.FormatBool(c.NoLimiter)
	case EnvOversubscribe:
		return "false"
	}
	// The limit of a GPU that the container doesn't have, another libcuda: unset.
	return ""
}

// RequestsNoLimiter says whether a container's user wants it without the limiter, by
// the variable that HAMi's users know: it is "true", wherever it is set.
func RequestsNoLimiter(c Container) bool {
	values := c.allenv(EnvDisableControl)
	return len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return v != "true" })
}

// visibleDevices is what NVIDIA's runtime is told: the GPUs where it injects
// them, and to keep out where CDI does, so that nothing is injected twice.
func visibleDevices(shares []grant.Share, way Injection) string {
	if way == InjectCDI {
		return visibleVoid
	}
	return strings.Join(uuidsOf(shares), ",")
}

// uuidsOf are the GPUs of shares, in the container's order.
func uuidsOf(shares []grant.Share) []string {
	uuids := make([]string, len(shares))
	for i, share := range shares {
		uuids[i] = share.UUID
	}
	return uuids
}

// smallest is the smallest memory limit, in MiB.
func smallest(shares []grant.Share) int64 {
	return slices.MinFunc(shares, func(a, b grant.Share) int {
		return int(min(max(a.MemoryMiB-b.MemoryMiB, -1), 1))
	}).MemoryMiB
}

// mebibytes writes a limit as HAMi does: "8000m" is 8000 MiB.
func mebibytes(mib int64) string {
	return strconv.FormatInt(mib, 10) + "m"
}

// indexed is the name of the i-th GPU's variable.
func indexed(name string, i int) string {
	return name + "_" + strconv.Itoa(i)
}

// variables is an ordered environment in which a name comes once.
type variables struct {
	list  []string
	index map[string]int
}

// set adds a variable or replaces it.
func (v *variables) set(name, value string) {
	v.add(name + "=" + value)
}

// add is set of a whole entry, "NAME=value".
func (v *variables) add(entry string) {
	name, _, _ := strings.Cut(entry, "=")
	if i, ok := v.index[name]; ok {
		v.list[i] = entry
		return
	}
	v.index[name] = len(v.list)
	v.list = append(v.list, entry)
}
