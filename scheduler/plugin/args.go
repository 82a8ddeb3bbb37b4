package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const (
	argsVersion = "gpuslice.io/v1"
	argsKind    = "GPUSliceArgs"
)

// How the scheduler's annotations are written. With either, the profile must have this plugin
// before DefaultBinder at the bind point.
const (
	// AnnotateWithBinding is in the write that binds.
	AnnotateWithBinding = "Binding"
	// AnnotateWithPatch is a write of its own before it, too, in PreBind: for those who look
	// at a pod between the two.
	AnnotateWithPatch = "Patch"
)

// Args are the plugin's settings, in pluginConfig of a KubeSchedulerConfiguration. All
// profiles of a process have the same: they share one state of the GPUs.
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// Resources are the resources' names; those left out are HAMi's and gpu-manager's.
	Resources ResourceNames `json:"resources,omitempty"`
	// Defaults are for containers that leave something out.
	Defaults Defaults `json:"defaults,omitempty"`
	// NodePolicy, GPUPolicy and Weights are for pods that name none.
	NodePolicy string `json:"nodePolicy,omitempty"`
	GPUPolicy  string `json:"gpuPolicy,omitempty"`
	Weights    string `json:"weights,omitempty"`
	// Annotate is Binding or Patch; empty: Binding.
	Annotate string `json:"annotate,omitempty"`
	// GrantPrivateKeyFile is the file with the private keys that sign grants, one or two in PEM. The
	// first signs; both verify. Empty: grants are neither signed nor verified.
	GrantPrivateKeyFile string `json:"grantPrivateKeyFile,omitempty"`
	// GroupTimeout is how long a pod waits, with its GPUs held, for the rest of its group.
	GroupTimeout metav1.Duration `json:"groupTimeout,omitempty"`
	// GPUQuota is the ConfigMap of gpu-manager's quota, as namespace/name; empty: none is read.
	GPUQuota string `json:"gpuQuota,omitempty"`
	// LegacyMetrics are others' names by which the GPUs are told of at /metrics too: hami.
	LegacyMetrics []string `json:"legacyMetrics,omitempty"`
}

// legacyHAMi are HAMi's names of metrics.
const legacyHAMi = "hami"

// HAMiMetrics says whether HAMi's names are wanted.
func (a *Args) HAMiMetrics() bool { return slices.Contains(a.LegacyMetrics, legacyHAMi) }

// ResourceNames are as in request.Names. A name of "-" is no resource.
type ResourceNames struct {
	// The number of GPUs; if left out nvidia.com/gpu.
	Count string `json:"count,omitempty"`
	// Memory of each GPU in MiB; nvidia.com/gpumem.
	Memory string `json:"memory,omitempty"`
	// Memory in percent of each GPU's; nvidia.com/gpumem-percentage.
	MemoryPercentage string `json:"memoryPercentage,omitempty"`
	// Compute time of each GPU in percent; nvidia.com/gpucores.
	Cores string `json:"cores,omitempty"`
	// HAMi's priority, 0 or 1; nvidia.com/priority.
	Priority string `json:"priority,omitempty"`
	// gpu-manager's cores, 100 a GPU; tencent.com/vcuda-core.
	VcudaCore string `json:"vcudaCore,omitempty"`
	// gpu-manager's memory, in blocks of 256 MiB; tencent.com/vcuda-memory.
	VcudaMemory string `json:"vcudaMemory,omitempty"`
}

// Defaults are as in request.Options.
type Defaults struct {
	// Memory in MiB of each GPU, where a container says none; 0: the whole GPU's.
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
	// Compute time in percent; 0: not limited.
	Cores int `json:"cores,omitempty"`
	// GPUs, where a container says memory or cores alone; 0: one.
	Count int `json:"count,omitempty"`
	// How many MiB one of the memory resource is; 0: one.
	MemoryFactor int64 `json:"memoryFactor,omitempty"`
}

const (
	defaultGroupTimeout = time.Minute
	// maxGroupTimeout is below what a reservation lasts.
	maxGroupTimeout = 10 * time.Minute
)

// ParseArgs reads the args as kube-scheduler hands them to a plugin that isn't its own.
// None are the defaults. Fields that there are not are mistakes.
func ParseArgs(object runtime.Object) (*Args, error) {
	args := &Args{TypeMeta: metav1.TypeMeta{APIVersion: argsVersion, Kind: argsKind}}
	switch object := object.(type) {
	case nil:
	case *runtime.Unknown:
		if object == nil || len(object.Raw) == 0 {
			break
		}
		*args = Args{}
		strict, err := json.UnmarshalStrict(object.Raw, args)
		if err = errors.Join(append(strict, err)...); err != nil {
			return nil, fmt.Errorf("args of plugin %s: %w", Name, err)
		}
	default:
		return nil, fmt.Errorf("args of plugin %s: are a %T, and must be JSON or YAML of %s %s", Name, object, argsVersion, argsKind)
	}
	if err := args.complete(); err != nil {
		return nil, fmt.Errorf("args of plugin %s: %w", Name, err)
	}
	return args, nil
}

// complete puts the defaults in, and checks.
func (a *Args) complete() error {
	a.Annotate = cmp.Or(a.Annotate, AnnotateWithBinding)
	a.GroupTimeout.Duration = cmp.Or(a.GroupTimeout.Duration, defaultGroupTimeout)
	switch {
	case a.APIVersion != argsVersion || a.Kind != argsKind:
		return fmt.Errorf("apiVersion %q, kind %q: must be %s, %s", a.APIVersion, a.Kind, argsVersion, argsKind)
	case a.Annotate != AnnotateWithPatch && a.Annotate != AnnotateWithBinding:
		return fmt.Errorf("annotate: %q: must be %s or %s", a.Annotate, AnnotateWithPatch, AnnotateWithBinding)
	case a.GroupTimeout.Duration < time.Second || a.GroupTimeout.Duration > maxGroupTimeout:
		return fmt.Errorf("groupTimeout: %v: must be from 1s to %v", a.GroupTimeout.Duration, maxGroupTimeout)
	case a.GPUQuota != "" && strings.Count(a.GPUQuota, "/") != 1:
		return fmt.Errorf("gpuQuota: %q: must be namespace/name", a.GPUQuota)
	case slices.ContainsFunc(a.LegacyMetrics, func(name string) bool { return name != legacyHAMi }):
		return fmt.Errorf("legacyMetrics: %q: may have %s", a.LegacyMetrics, legacyHAMi)
	case a.Defaults.MemoryMiB < 0:
		return fmt.Errorf("defaults.memoryMiB: %d: must not be negative", a.Defaults.MemoryMiB)
	case a.Defaults.Cores < 0 || a.Defaults.Cores > 100:
		return fmt.Errorf("defaults.cores: %d: must be percent of a GPU, 0 to 100", a.Defaults.Cores)
	case a.Defaults.Count < 0:
		return fmt.Errorf("defaults.count: %d: must not be negative", a.Defaults.Count)
	case a.Defaults.MemoryFactor < 0:
		return fmt.Errorf("defaults.memoryFactor: %d: must not be negative", a.Defaults.MemoryFactor)
	}
	return nil
}

// ReadArgs reads args from a YAML or JSON file, for processes that are not kube-scheduler
// and have the same settings.
func ReadArgs(path string) (*Args, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", argsKind, err)
	}
	if data, err = yaml.YAMLToJSONStrict(data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	args, err := ParseArgs(&runtime.Unknown{Raw: data})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return args, nil
}

// Engine are the engine's options that the args say, without Keys.
func (a *Args) Engine() engine.Options {
	return engine.Options{Request: a.request(), NodePolicy: a.NodePolicy, GPUPolicy: a.GPUPolicy, Weights: a.Weights}
}

// GPUQuotaName is GPUQuota's two parts; empty where there is none.
func (a *Args) GPUQuotaName() (namespace, name string) {
	namespace, name, _ = strings.Cut(a.GPUQuota, "/")
	return namespace, name
}

// request is how requests are read.
func (a *Args) request() request.Options {
	o := request.DefaultOptions()
	for _, n := range []struct {
		to   *string
		name string
	}{
		{&o.Names.Count, a.Resources.Count}, {&o.Names.Memory, a.Resources.Memory},
		{&o.Names.MemoryPercentage, a.Resources.MemoryPercentage}, {&o.Names.Cores, a.Resources.Cores},
		{&o.Names.Priority, a.Resources.Priority},
		{&o.Names.VcudaCore, a.Resources.VcudaCore}, {&o.Names.VcudaMemory, a.Resources.VcudaMemory},
	} {
		switch n.name {
		case "":
		case "-":
			*n.to = ""
		default:
			*n.to = n.name
		}
	}
	o.DefaultMemoryMiB, o.DefaultCores = a.Defaults.MemoryMiB, a.Defaults.Cores
	o.DefaultCount = cmp.Or(a.Defaults.Count, o.DefaultCount)
	o.MemoryFactor = cmp.Or(a.Defaults.MemoryFactor, o.MemoryFactor)
	return o
}
