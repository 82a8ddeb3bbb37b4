package oci

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// Variables with HAMi's names, units and meanings (its device plugin's server.go, HAMi-core's README).
const (
	// EnvVisibleDevices selects the GPUs that NVIDIA's runtime injects.
	EnvVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// EnvMemoryLimit is the limit of every GPU, "<MiB>m"; with "_<i>", of the container's i-th GPU.
	EnvMemoryLimit = "CUDA_DEVICE_MEMORY_LIMIT"
	// EnvCoreLimit is the share of compute time of every GPU, in percent (0: no limit); with "_<i>", of the i-th GPU.
	EnvCoreLimit = "CUDA_DEVICE_SM_LIMIT"
	// EnvSharedCache is the path of the usage file.
	EnvSharedCache = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	// EnvOversubscribe is "true" if allocations may use host memory.
	EnvOversubscribe = "CUDA_OVERSUBSCRIBE"
	// EnvCorePolicy is a CorePolicy.
	EnvCorePolicy = "GPU_CORE_UTILIZATION_POLICY"
	// EnvTaskPriority is "0" (high) or "1" (low).
	EnvTaskPriority = "CUDA_TASK_PRIORITY"
	// EnvDisableControl disables the limiter, here only with the operator's permission.
	EnvDisableControl = "CUDA_DISABLE_CONTROL"
	// EnvRedirect makes HAMi-core load another libcuda.
	EnvRedirect = "CUDA_REDIRECT"
)

// With "void" NVIDIA's runtime does nothing; "none" injects the driver.
const visibleVoid = "void"

// taskPriority is the default priority. A container's own CUDA_TASK_PRIORITY is ignored: its neighbours would pay for it.
const taskPriority = limiter.PriorityLow

func OwnedEnv(name string) bool {
	switch name {
	case EnvVisibleDevices, EnvSharedCache, EnvOversubscribe, EnvCorePolicy, EnvTaskPriority,
		EnvDisableControl, EnvRedirect, EnvMemoryLimit, EnvCoreLimit:
		return true
	}
	_, indexed := limitIndex(name)
	return indexed
}

func limitIndex(name string) (index string, is bool) {
	if index, is = strings.CutPrefix(name, EnvMemoryLimit+"_"); is {
		return index, true
	}
	return strings.CutPrefix(name, EnvCoreLimit+"_")
}

// checkLimitNames refuses an impossible index. Each name needs an edit, so a container could choose the result's
// size.
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

func environment(shares []grant.Share, s Settings, c Container, way Injection) []string {
	env := newVariables()
	set := func(name, value string) { env.put(name + "=" + value) }

	set(EnvVisibleDevices, visibleDevices(shares, way))
	if way == InjectEnvvar && !s.Graphics {
		set(EnvDriverCapabilities, driverCapabilities(c))
	}
	for i, share := range shares {
		set(fmt.Sprintf("%s_%d", EnvMemoryLimit, i), mebibytes(share.MemoryMiB))
	}
	// HAMi-core applies the plain name to every GPU, so each GPU needs its own.
	set(EnvCoreLimit, strconv.Itoa(shares[0].CorePercent))
	for i, share := range shares {
		set(fmt.Sprintf("%s_%d", EnvCoreLimit, i), strconv.Itoa(share.CorePercent))
	}
	set(EnvSharedCache, limiter.ContainerUsagePath)
	if slices.ContainsFunc(shares, func(share grant.Share) bool { return s.oversubscribed(share.UUID) }) {
		set(EnvOversubscribe, "true")
	}
	if s.corePolicy() != CoreDefault {
		set(EnvCorePolicy, string(s.corePolicy()))
	}

	for _, name := range c.requested() {
		set(name, visibleDevices(shares, way))
	}
	for _, name := range ownedNames(c.Env) {
		if _, done := env.index[name]; !done {
			set(name, neutral(name, shares, s, c))
		}
	}
	return env.list
}

func ownedNames(env []string) []string {
	var names []string
	for _, e := range env {
		if name, _, ok := strings.Cut(e, "="); ok && OwnedEnv(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// neutral returns the value of a variable that the container sets and the grant does not. A removal is not possible:
// NRI passes none to the runtime without an addition.
func neutral(name string, shares []grant.Share, s Settings, c Container) string {
	switch name {
	case EnvMemoryLimit: // for every GPU without an indexed limit: the smallest limit
		return mebibytes(slices.MinFunc(shares, func(a, b grant.Share) int { return cmp.Compare(a.MemoryMiB, b.MemoryMiB) }).MemoryMiB)
	case EnvCorePolicy:
		return string(s.corePolicy())
	case EnvTaskPriority:
		return strconv.Itoa(int(taskPriority))
	case EnvDisableControl:
		return strconv.FormatBool(c.NoLimiter)
	case EnvOversubscribe:
		return "false"
	}
	return ""
}

// RequestsNoLimiter reports whether each CUDA_DISABLE_CONTROL is "true".
func RequestsNoLimiter(c Container) bool {
	values := c.allenv(EnvDisableControl)
	return len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return v != "true" })
}

func visibleDevices(shares []grant.Share, way Injection) string {
	if way == InjectCDI {
		return visibleVoid
	}
	return strings.Join(uuidsOf(shares), ",")
}

func uuidsOf(shares []grant.Share) []string {
	uuids := make([]string, len(shares))
	for i, share := range shares {
		uuids[i] = share.UUID
	}
	return uuids
}

// mebibytes writes a limit as HAMi does.
func mebibytes(mib int64) string { return fmt.Sprintf("%dm", mib) }
