package oci

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// envCUDADevices is CUDA's list of the GPUs that a program may use.
const envCUDADevices = "CUDA_VISIBLE_DEVICES"

func OwnedEnv(name string) bool {
	switch name {
	case api.EnvVisibleDevices, api.EnvSharedCache, api.EnvOversubscribe, api.EnvCorePolicy, api.EnvTaskPriority,
		api.EnvDisableControl, api.EnvRedirect, api.EnvMemoryLimit, api.EnvCoreLimit:
		return true
	}
	_, indexed := limitIndex(name)
	return indexed
}

func limitIndex(name string) (index string, is bool) {
	if index, is = strings.CutPrefix(name, api.EnvMemoryLimit+"_"); is {
		return index, true
	}
	return strings.CutPrefix(name, api.EnvCoreLimit+"_")
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

	set(api.EnvVisibleDevices, visibleDevices(shares, way))
	if s.Host { // it has the nodes of all GPUs
		set(envCUDADevices, strings.Join(uuidsOf(shares), ","))
	}
	if way == InjectEnvvar && !s.Graphics {
		set(EnvDriverCapabilities, driverCapabilities(c))
	}
	for i, share := range shares {
		set(fmt.Sprintf("%s_%d", api.EnvMemoryLimit, i), mebibytes(share.MemoryMiB))
	}
	// HAMi-core applies the plain name to every GPU, so each GPU needs its own.
	set(api.EnvCoreLimit, strconv.Itoa(shares[0].CorePercent))
	for i, share := range shares {
		set(fmt.Sprintf("%s_%d", api.EnvCoreLimit, i), strconv.Itoa(share.CorePercent))
	}
	set(api.EnvSharedCache, api.ContainerUsagePath)
	if slices.ContainsFunc(shares, func(share grant.Share) bool { return s.oversubscribed(share.UUID) }) {
		set(api.EnvOversubscribe, "true")
	}
	if s.corePolicy() != CoreDefault {
		set(api.EnvCorePolicy, string(s.corePolicy()))
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
	case api.EnvMemoryLimit: // for every GPU without an indexed limit: the smallest limit
		return mebibytes(slices.MinFunc(shares, func(a, b grant.Share) int { return cmp.Compare(a.MemoryMiB, b.MemoryMiB) }).MemoryMiB)
	case api.EnvCorePolicy:
		return string(s.corePolicy())
	case api.EnvTaskPriority:
		if c.HighPriority {
			return strconv.Itoa(int(limiter.PriorityHigh))
		}
		return strconv.Itoa(int(limiter.PriorityLow))
	case api.EnvDisableControl:
		return strconv.FormatBool(c.NoLimiter)
	case api.EnvOversubscribe:
		return "false"
	}
	return ""
}

// RequestsNoLimiter reports whether each CUDA_DISABLE_CONTROL is "true".
func RequestsNoLimiter(c Container) bool {
	values := c.allenv(api.EnvDisableControl)
	return len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return v != "true" })
}

// RequestsPriority reports whether each CUDA_TASK_PRIORITY is 0, which is high.
func RequestsPriority(c Container) bool {
	values := c.allenv(api.EnvTaskPriority)
	high := strconv.Itoa(int(limiter.PriorityHigh))
	return len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return v != high })
}

func visibleDevices(shares []grant.Share, way Injection) string {
	if way == InjectCDI {
		return api.VisibleVoid
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
