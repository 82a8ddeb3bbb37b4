package nriplugin_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/gpuslice/gpuslice/limiter"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// faultShape is a kind of container, a column of the matrix.
type faultShape struct {
	name    string
	granted bool
	// claimed: it has a prepared ResourceClaim in place of a scheduler's grant. forged: it mounts the record of one.
	claimed, forged bool
	// change makes the container of an ordinary one.
	change func(*api.Container)
}

// The share of GPU A that a granted container of the matrix has.
const faultMiB, faultCores = 1000, 10

// faultShapes are the columns. Each without a grant asks for a GPU.
var faultShapes = []faultShape{
	{name: "with a grant", granted: true, change: func(*api.Container) {}},
	{name: "with a grant, names another's GPU", granted: true, change: setsEnv("NVIDIA_VISIBLE_DEVICES=" + gpuB)},
	{name: "with a grant, mounts its own ld.so.preload", granted: true, change: func(c *api.Container) {
		c.Mounts = append(c.Mounts, &api.Mount{Destination: "/etc/ld.so.preload", Source: "/dev/null", Type: "bind", Options: []string{"bind"}})
	}},
	{name: "with a grant, sets its own limits", granted: true, change: setsEnv("CUDA_DISABLE_CONTROL=true", "CUDA_DEVICE_MEMORY_LIMIT=0", "CUDA_DEVICE_MEMORY_LIMIT_0=0", "CUDA_DEVICE_SM_LIMIT=0")},
	{name: "with a grant, privileged", granted: true, change: privileged},
	{name: "without a grant, its image sets all", change: setsEnv("NVIDIA_VISIBLE_DEVICES=all")},
	{name: "without a grant, names another's GPU", change: setsEnv("NVIDIA_VISIBLE_DEVICES=" + gpuB)},
	{name: "without a grant, privileged, its image sets all", change: func(c *api.Container) {
		privileged(c)
		setsEnv("NVIDIA_VISIBLE_DEVICES=all")(c)
	}},
	{name: "with a ResourceClaim", granted: true, claimed: true, change: func(*api.Container) {}},
	{name: "with a ResourceClaim, sets its own limits", granted: true, claimed: true, change: setsEnv("CUDA_DISABLE_CONTROL=true", "CUDA_DEVICE_MEMORY_LIMIT=0", "CUDA_DEVICE_MEMORY_LIMIT_0=0", "CUDA_DEVICE_SM_LIMIT=0")},
	{name: "without a ResourceClaim, mounts another's record", forged: true, change: setsEnv("NVIDIA_VISIBLE_DEVICES=all")},
}

func setsEnv(env ...string) func(*api.Container) {
	return func(c *api.Container) { c.Env = append(c.Env, env...) }
}

func privileged(c *api.Container) {
	c.Linux = &api.LinuxContainer{Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}}
}

// faultOutcome is what became of a container.
type faultOutcome string

const (
	limited faultOutcome = "limited"
	// voided: it has no GPU, and asks for none (any more).
	voided faultOutcome = "no GPU"
	// bare: it has no GPU, and what it asks for itself still stands in its spec.
	bare faultOutcome = "no GPU, its request stands"

	byDeadline  faultOutcome = "refused: inner deadline"
	byError     faultOutcome = "refused: plugin's error"
	byReconcile faultOutcome = "refused: not reconciled"
	byLost      faultOutcome = "refused: validator, request lost"
	bySecond    faultOutcome = "refused: second plugin"
	byRecord    faultOutcome = "refused: another's record"
)

// faultRefusals are the texts that refusals are known by.
var faultRefusals = []struct {
	text string
	faultOutcome
}{
	{"refuses all grants until the ledger is reconciled", byReconcile}, // and then why
	{errPopulate.Error(), byError},
	{"reports no CDI device for it", byRecord},
	{"did not decide within the runtime's NRI timeout", byDeadline},
	{"which only gpuslice writes", bySecond},                                // the annotation of the first plugin
	{"plugin 90-gpuslice failed to handle CreateContainer request", byLost}, // NRI 0.12.5
	{"validator plugin 90-gpuslice failed: ttrpc: closed", byLost},
	{"validator plugin 90-gpuslice failed: context deadline exceeded", byLost},
}

// faultOutcomeOf classifies the result of a creation. An unknown result is an error: a container that is
// refused for another reason proves nothing.
func faultOutcomeOf(spec *rspec.Spec, err error, dirs []string) (faultOutcome, error) {
	if err != nil {
		for _, r := range faultRefusals {
			if strings.Contains(err.Error(), r.text) {
				return r.faultOutcome, nil
			}
		}
		return "", fmt.Errorf("refused for another reason: %w", err)
	}
	nodes := gpuNodes(spec)
	limits := sourceOf(spec, "/.gpuslice")
	visible, _ := envOf(spec, "NVIDIA_VISIBLE_DEVICES")
	if len(nodes) == 0 && limits == "" {
		if visible == "" || visible == "void" {
			return voided, nil
		}
		return bare, nil
	}
	memory, times := envOf(spec, "CUDA_DEVICE_MEMORY_LIMIT_0")
	control, _ := envOf(spec, "CUDA_DISABLE_CONTROL")
	if slices.Equal(nodes, []string{"/dev/nvidiactl", "/dev/nvidia0"}) && visible == "void" &&
		slices.ContainsFunc(dirs, func(dir string) bool { return limits == limiter.FilesDir(dir) }) &&
		sourceOf(spec, "/etc/ld.so.preload") == "/var/lib/gpuslice/lib/ld.so.preload" &&
		memory == fmt.Sprintf("%dm", faultMiB) && times == 1 && control != "true" {
		return limited, nil
	}
	return "", fmt.Errorf("a GPU that is not limited: nodes %v, limits from %q, mounts %v, environment %v", nodes, limits, spec.Mounts, spec.Process.Env)
}

// faultTally counts a cell's outcomes.
type faultTally struct {
	mu     sync.Mutex
	counts map[faultOutcome]int
	errs   []error
}

func (c *faultTally) add(o faultOutcome, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	if c.counts == nil {
		c.counts = map[faultOutcome]int{}
	}
	c.counts[o]++
}

func (c *faultTally) String() string {
	var parts []string
	for _, o := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", c.counts[o], o))
	}
	return strings.Join(parts, "; ")
}
