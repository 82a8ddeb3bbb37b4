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

// How the grant is written. Both need this plugin before DefaultBinder at the bind point.
const (
	AnnotateWithBinding = "Binding" // with the Binding
	AnnotateWithPatch   = "Patch"   // also in PreBind, before the Binding
)

// Args are the plugin's args in a KubeSchedulerConfiguration. All profiles need the same args.
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// Names of the resources; "-" disables one.
	Resources ResourceNames `json:"resources,omitempty"`
	// Defaults for what containers do not request.
	Defaults Defaults `json:"defaults,omitempty"`
	// Default node policy of pods.
	NodePolicy string `json:"nodePolicy,omitempty"`
	// Default GPU policy of pods.
	GPUPolicy string `json:"gpuPolicy,omitempty"`
	// Default weights of pods.
	Weights string `json:"weights,omitempty"`
	// Weight of the GPU score if the pod or nodes have preferences (preferred affinity, soft spreading, PreferNoSchedule,
	// images): percent of its usual weight, 1 to 100; default 10.
	ScoreWithPreferences int `json:"scoreWithPreferences,omitempty"`
	// gpu-manager's memory limits whole GPUs too. By default they have all their memory, as with gpu-manager.
	VcudaLimitsWholeGPUs bool `json:"vcudaLimitsWholeGPUs,omitempty"`
	// Labels of the nodes that get pods with GPUs; empty: all nodes that have registered GPUs.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// When to write the grant: with the Binding (default) or also before it (Patch).
	Annotate string `json:"annotate,omitempty"`
	// File with one or two private keys in PEM: the first signs grants, both verify. Empty: grants
	// are neither signed nor verified.
	GrantPrivateKeyFile string `json:"grantPrivateKeyFile,omitempty"`
	// How long a pod waits, with its GPUs reserved, for its group.
	GroupTimeout metav1.Duration `json:"groupTimeout,omitempty"`
	// Labels of nodes, the narrowest first, such as nvidia.com/gpu.clique (an NVLink domain) and a rack's: the
	// pods of a group get nodes with the same value of the first one that has room for all of them. Empty: any nodes.
	GroupTopology []string `json:"groupTopology,omitempty"`
	// Alpha: pods of lower priority are evicted for a whole group (the plugin only). Default: false.
	GroupPreemption bool `json:"groupPreemption,omitempty"`
	// ConfigMap with gpu-manager's quota, as namespace/name; empty: no quota.
	GPUQuota string `json:"gpuQuota,omitempty"`
	// Also export metrics under these other names: hami.
	LegacyMetrics []string `json:"legacyMetrics,omitempty"`
}

const legacyHAMi = "hami"

// HAMiMetrics reports whether HAMi's names are enabled.
func (a *Args) HAMiMetrics() bool { return slices.Contains(a.LegacyMetrics, legacyHAMi) }

type ResourceNames struct {
	// Number of GPUs; default nvidia.com/gpu.
	Count string `json:"count,omitempty"`
	// Memory of each GPU in MiB; default nvidia.com/gpumem.
	Memory string `json:"memory,omitempty"`
	// Memory of each GPU in percent; default nvidia.com/gpumem-percentage.
	MemoryPercentage string `json:"memoryPercentage,omitempty"`
	// Compute time of each GPU in percent; default nvidia.com/gpucores.
	Cores string `json:"cores,omitempty"`
	// HAMi's priority, 0 or 1; default nvidia.com/priority.
	Priority string `json:"priority,omitempty"`
	// gpu-manager's cores, 100 for a GPU; default tencent.com/vcuda-core.
	VcudaCore string `json:"vcudaCore,omitempty"`
	// gpu-manager's memory in blocks of 256 MiB; default tencent.com/vcuda-memory.
	VcudaMemory string `json:"vcudaMemory,omitempty"`
}

// Defaults are as in request.Options.
type Defaults struct {
	// Memory of each GPU in MiB; 0: the whole GPU.
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
	// Compute time in percent; 0: unlimited.
	Cores int `json:"cores,omitempty"`
	// Number of GPUs for containers that request only memory or cores; 0: one.
	Count int `json:"count,omitempty"`
	// MiB in one unit of the memory resource; 0: one.
	MemoryFactor int64 `json:"memoryFactor,omitempty"`
}

// defaultScoreWithPreferences, with the plugin's weight of 5, is half of what ImageLocality counts and a quarter of
// NodeAffinity, which are the lightest of kube-scheduler's preferences.
const defaultScoreWithPreferences = 10

const (
	defaultGroupTimeout = time.Minute
	maxGroupTimeout     = 10 * time.Minute // less than reservationTTL
)

// ParseArgs decodes args; nil gives the defaults, unknown fields are errors.
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
		return nil, fmt.Errorf("args of plugin %s: unsupported type %T: must be JSON or YAML of %s %s", Name, object, argsVersion, argsKind)
	}
	if err := args.complete(); err != nil {
		return nil, fmt.Errorf("args of plugin %s: %w", Name, err)
	}
	return args, nil
}

func (a *Args) complete() error {
	a.Annotate = cmp.Or(a.Annotate, AnnotateWithBinding)
	a.ScoreWithPreferences = cmp.Or(a.ScoreWithPreferences, defaultScoreWithPreferences)
	a.GroupTimeout.Duration = cmp.Or(a.GroupTimeout.Duration, defaultGroupTimeout)
	switch {
	case a.APIVersion != argsVersion || a.Kind != argsKind:
		return fmt.Errorf("apiVersion %q, kind %q: must be %s, %s", a.APIVersion, a.Kind, argsVersion, argsKind)
	case a.Annotate != AnnotateWithPatch && a.Annotate != AnnotateWithBinding:
		return fmt.Errorf("annotate: %q: must be %s or %s", a.Annotate, AnnotateWithPatch, AnnotateWithBinding)
	case a.ScoreWithPreferences < 1 || a.ScoreWithPreferences > 100:
		return fmt.Errorf("scoreWithPreferences: %d: must be percent, 1 to 100", a.ScoreWithPreferences)
	case a.GroupTimeout.Duration < time.Second || a.GroupTimeout.Duration > maxGroupTimeout:
		return fmt.Errorf("groupTimeout: %v: must be from 1s to %v", a.GroupTimeout.Duration, maxGroupTimeout)
	case a.GPUQuota != "" && strings.Count(a.GPUQuota, "/") != 1:
		return fmt.Errorf("gpuQuota: %q: must be namespace/name", a.GPUQuota)
	case slices.ContainsFunc(a.LegacyMetrics, func(name string) bool { return name != legacyHAMi }):
		return fmt.Errorf("legacyMetrics: %q: only %s is supported", a.LegacyMetrics, legacyHAMi)
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

// ReadArgs reads a YAML or JSON file.
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

// Engine returns the engine's options without Keys.
func (a *Args) Engine() engine.Options {
	return engine.Options{Request: a.request(), NodePolicy: a.NodePolicy, GPUPolicy: a.GPUPolicy, Weights: a.Weights, NodeSelector: a.NodeSelector}
}

// GPUQuotaName splits GPUQuota; empty for none.
func (a *Args) GPUQuotaName() (namespace, name string) {
	namespace, name, _ = strings.Cut(a.GPUQuota, "/")
	return namespace, name
}

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
	o.VcudaLimitsWholeGPUs = a.VcudaLimitsWholeGPUs
	o.MemoryFactor = cmp.Or(a.Defaults.MemoryFactor, o.MemoryFactor)
	return o
}
