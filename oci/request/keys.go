package request

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"go.yaml.in/yaml/v3"
)

// words is a schema's enumeration.
func words(all ...string) map[string]any { return map[string]any{"type": "string", "enum": all} }

// What schemas say of values.
var (
	textSchema      = map[string]any{"type": "string"}
	pathSchema      = map[string]any{"type": "string", "pattern": "^/"}
	booleanSchema   = map[string]any{"type": "boolean"}
	sizeSchema      = map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]{1,6})? ?[KkMmGgTt][Ii]?[Bb]?|[0-9]+ ?%)$`}
	coresSchema     = map[string]any{"type": []string{"integer", "string"}, "minimum": 1, "maximum": grant.MaxCorePercent, "pattern": "^[0-9]+%?$"}
	namespaceSchema = map[string]any{"type": "string", "pattern": namespaceForm}
	devicesSchema   = map[string]any{"type": []string{"integer", "string"}, "minimum": 1, "maximum": grant.MaxShares}
)

func listOf(items map[string]any) map[string]any {
	return map[string]any{"type": "array", "items": items}
}

func rangeOf(kind string, least, most any) map[string]any {
	return map[string]any{"type": kind, "minimum": least, "maximum": most}
}

var (
	limiterModes = []string{"auto", "preload", "library"}
	corePolicies = []string{"default", "force", "disable"}
	injections   = []string{"auto", "cdi", "envvar"}
)

// The ranges are those of the agent's options.
const (
	maxSplitCount          = 1000
	minScaling, maxScaling = 0.01, 100
	maxContextMiB          = 16384
)

// configFields are the keys of the file, in the order of the example.
func configFields() []field[Config] {
	return []field[Config]{
		{"devices", "GPUs that containers without Kubernetes may use, by UUID (nvidia-smi -L) or index; none: all. An index may mean another GPU after a reboot", listOf(textOrNumber),
			texts(func(c *Config) *[]string { return &c.Devices }, checkDevice)},
		{"maximum", "the most that one container may have", objectSchema(limitFields()),
			nested(func(c *Config) *Limit { return &c.Maximum }, limitFields())},
		{"default", "what a request that leaves something out gets; a container that asks for nothing gets nothing", objectSchema(defaultFields()),
			nested(func(c *Config) *Slice { return &c.Default }, defaultFields())},
		{"allowWholeGPUs", "who says no amount of memory gets the whole GPU; NVIDIA_VISIBLE_DEVICES alone is a request for whole GPUs", booleanSchema,
			boolean(func(c *Config) *bool { return &c.AllowWholeGPUs })},
		{"allowHighPriority", "a container may ask for priority 0, before which others stand back", booleanSchema,
			boolean(func(c *Config) *bool { return &c.AllowHighPriority })},
		{"allowControlSwitch", "a container may switch its limiter off by CUDA_DISABLE_CONTROL=true: it is held to nothing then", booleanSchema,
			boolean(func(c *Config) *bool { return &c.AllowControlSwitch })},
		{"annotationsOnly", "requests are read from annotations only, and not from variables, which an image can set too", booleanSchema,
			boolean(func(c *Config) *bool { return &c.AnnotationsOnly })},
		{"slices", "requests by name, for GPUSLICE_SLICE and for CDI (gpuslice.io/slice=NAME)", map[string]any{
			"type": "object", "additionalProperties": required(objectSchema(sliceFields()), "memory"), "propertyNames": map[string]any{"pattern": sliceForm}},
			readSlices},
		{"limiterMode", "how the limiter gets into programs: preload (by ld.so.preload), library (as libcuda.so.1), or auto", words(limiterModes...),
			text(func(c *Config) *string { return &c.LimiterMode }, oneOf(limiterModes...))},
		{"corePolicy", "when shares of compute time are enforced: default (while others use the GPU), force (always), or disable (never)", words(corePolicies...),
			text(func(c *Config) *string { return &c.CorePolicy }, oneOf(corePolicies...))},
		{"deviceInjection", "how a container gets its GPUs: cdi (by the nvidia.com/gpu CDI spec), envvar (by NVIDIA's runtime as the low-level one), or auto", words(injections...),
			text(func(c *Config) *string { return &c.DeviceInjection }, oneOf(injections...))},
		{"graphics", "give containers the driver's libraries for OpenCL, OpenGL, Vulkan and OptiX too; what programs use by them is not limited", booleanSchema,
			boolean(func(c *Config) *bool { return &c.Graphics })},
		{"cdiSpecDirs", "directories of CDI specs; a later one wins over an earlier one", listOf(pathSchema),
			texts(func(c *Config) *[]string { return &c.CDISpecDirs }, checkPath)},
		{"deviceSplitCount", "containers that may share a GPU; where the agent runs, it says that", rangeOf("integer", 1, maxSplitCount),
			integer(func(c *Config) *int { return &c.DeviceSplitCount }, 1, maxSplitCount)},
		{"memoryScaling", "grantable memory as a multiple of a GPU's; above 1 oversubscribes; where the agent runs, it says that", rangeOf("number", minScaling, maxScaling),
			number(func(c *Config) *float64 { return &c.MemoryScaling }, minScaling, maxScaling)},
		{"contextMemoryMiB", "device memory that a CUDA context is charged with, in MiB; -1 goes by the GPU's model, 0 charges none", rangeOf("integer", -1, maxContextMiB),
			integer(func(c *Config) *int { return &c.ContextMemoryMiB }, -1, maxContextMiB)},
		{"runtimes", "low-level runtimes, names or absolute paths: the first that is there is used", listOf(textSchema),
			texts(func(c *Config) *[]string { return &c.Runtimes }, checkRuntime)},
		{"nvidiaRuntime", "NVIDIA's container runtime, a name or an absolute path: it creates containers of pods if the NRI plugin or exemptNamespaces allow it, and docker's containers if no CDI spec has the GPUs", textSchema,
			text(func(c *Config) *string { return &c.NvidiaRuntime }, checkRuntime)},
		{"exemptNamespaces", "Kubernetes namespaces in which NVIDIA's container runtime gives containers the GPUs that they request, whole GPUs too: the agent's own, and those in the agent's --exempt-namespaces", listOf(namespaceSchema),
			texts(func(c *Config) *[]string { return &c.ExemptNamespaces }, checkNamespace)},
		{"stateDir", "directory of the node's ledger, the agent's --state-dir", pathSchema,
			text(func(c *Config) *string { return &c.StateDir }, checkPath)},
		{"libraryDir", "directory that the limiter is installed to, the agent's --library-dir", pathSchema,
			text(func(c *Config) *string { return &c.LibraryDir }, checkPath)},
		{"nodeFile", "the agent's account of the GPUs; not given: node.json in stateDir", pathSchema,
			text(func(c *Config) *string { return &c.NodeFile }, checkPath)},
		{"nvmlLibrary", "the driver's management library, which is asked where there is no such account", textSchema,
			text(func(c *Config) *string { return &c.NVMLLibrary }, checkNotEmpty)},
	}
}

var textOrNumber = map[string]any{"type": []string{"string", "integer"}}

func limitFields() []field[Limit] {
	return []field[Limit]{
		{"memory", "memory of each GPU, a size or a percentage of the GPU", sizeSchema,
			parsed(func(l *Limit) *Size { return &l.Memory }, ParseSize)},
		{"cores", "compute time of each GPU in percent; who asks for none has this much", coresSchema,
			parsed(func(l *Limit) *int { return &l.CorePercent }, ParseCores)},
		{"devices", "number of GPUs", rangeOf("integer", 1, grant.MaxShares),
			integer(func(l *Limit) *int { return &l.Devices }, 1, grant.MaxShares)},
	}
}

func defaultFields() []field[Slice] {
	return []field[Slice]{
		{"memory", "memory of each GPU, a size or a percentage of the GPU", sizeSchema,
			parsed(func(s *Slice) *Size { return &s.Memory }, ParseSize)},
		{"cores", "compute time of each GPU in percent", coresSchema,
			parsed(func(s *Slice) *int { return &s.CorePercent }, ParseCores)},
		{"devices", "which GPUs: 2, all, or device= and indices or UUIDs", devicesSchema,
			parsed(func(s *Slice) *Devices { return &s.Devices }, ParseDevices)},
	}
}

func sliceFields() []field[Slice] {
	return append(defaultFields(), field[Slice]{"priority", "0: others stand back while the container is at work; 1: not", rangeOf("integer", 0, 1),
		func(d *decoder, key string, n *yaml.Node, into *Slice) {
			priority := 1
			integer(func(p *int) *int { return p }, 0, 1)(d, key, n, &priority)
			into.HighPriority = priority == 0
		}})
}

// sliceForm is a slice's name: that of a CDI device, less what a shell would want quoted.
const sliceForm = `^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`

// slicePattern reads it. To compile it takes longer than to read most configs.
var slicePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(sliceForm) })

// readSlices reads the requests by name.
func readSlices(d *decoder, key string, n *yaml.Node, into *Config) {
	into.Slices = map[string]Slice{}
	d.entries(key, n, func(name, full string, at, value *yaml.Node) {
		if !slicePattern().MatchString(name) {
			d.fail(at.Line, full, "%s is no name of a slice: 1 to 63 letters, digits, and between them also _ . -", quote.Short(name))
		}
		var slice Slice
		object(d, full, value, sliceFields(), &slice)
		into.Slices[name] = slice
	})
}

func checkDevice(name string) error {
	if err := validateName(name); err != nil {
		return fmt.Errorf("%s %w", quote.Short(name), err)
	}
	return nil
}

// namespaceForm is the name of a Kubernetes namespace.
const namespaceForm = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`

func checkNamespace(name string) error {
	if ok, err := regexp.MatchString(namespaceForm, name); err != nil || !ok {
		return fmt.Errorf("%s is not the name of a Kubernetes namespace", quote.Short(name))
	}
	return nil
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%s must be an absolute path with neither . nor .. in it", quote.Short(path))
	}
	return nil
}

// checkRuntime wants something to execute that isn't ourselves.
func checkRuntime(runtime string) error {
	if filepath.Base(runtime) == "gpuslice-runtime" {
		return fmt.Errorf("%s would call itself: name a low-level runtime such as runc", quote.Short(runtime))
	}
	if strings.Contains(runtime, "/") {
		return checkPath(runtime)
	}
	return checkNotEmpty(runtime)
}

func checkNotEmpty(text string) error {
	if strings.TrimSpace(text) == "" {
		return fmt.Errorf("is empty: leave the key out for its default")
	}
	return nil
}
