// Package request parses what a pod requests: HAMi's five resources, gpu-manager's two, and the annotations
// that select GPUs. A container uses one kind of resources. Defaults are those of the webhook, for pods that
// bypass it.
package request

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
)

// Container is a container's request. GPUs == 0: none.
type Container struct {
	GPUs int
	// MemoryMiB is per GPU; 0: MemoryPercent.
	MemoryMiB     int64
	MemoryPercent int
	// Cores is percent of each GPU; 0: unlimited, reserves none.
	Cores int
	// LeastMiB and LeastCores are the request of a container with the isolation hardware, which gets whole GPUs.
	LeastMiB   int64
	LeastCores int
}

// whole makes it a request for whole GPUs.
func (c *Container) whole() {
	c.LeastMiB, c.LeastCores = c.MemoryMiB, c.Cores
	c.MemoryMiB, c.MemoryPercent, c.Cores = 0, 100, wholeCores
}

// Memory is the memory on a GPU of gpuMiB, at least 1 MiB. It can be more than the GPU has.
func (c *Container) Memory(gpuMiB int64) int64 {
	if c.MemoryMiB > 0 || c.MemoryPercent == 0 {
		return c.MemoryMiB
	}
	// In two parts, to prevent overflow.
	mib := gpuMiB/100*int64(c.MemoryPercent) + gpuMiB%100*int64(c.MemoryPercent)/100
	return max(mib, min(gpuMiB, 1), c.LeastMiB)
}

func (c *Container) Use(gpuMiB int64) scheduler.Use {
	return scheduler.Use{MemoryMiB: c.Memory(gpuMiB), Cores: c.Cores, Replicas: 1}
}

// Exclusive reports whether the container requires an unused GPU: 100 cores do, unless the node offers more
// (HAMi's rule).
func (c *Container) Exclusive(gpuCores int) bool {
	return c.Cores == wholeCores && gpuCores <= grant.MaxCorePercent
}

// GPUMemory orders requests by size: the GPUs and their memory in MiB, or in percent.
func (r *Request) GPUMemory() (size int64) {
	for i := range r.Containers {
		c := &r.Containers[i]
		size += int64(c.GPUs) * (1 + c.MemoryMiB + int64(c.MemoryPercent)<<20)
	}
	return size
}

type Request struct {
	// By position in Pod.Containers.
	Containers []Container
	Kinds      []scheduler.Kind
	Rules      Rules
	// HighPriority: a container has HAMi's priority 0.
	HighPriority bool
	// Signature is equal for requests with equal results on any node, apart from quotas: a cache key.
	Signature string
}

// FromPod parses the pod's request; nil, nil: none. Errors are *Error.
func FromPod(pod *scheduler.Pod, o Options) (*Request, error) {
	var r *Request
	for i := range pod.Containers {
		c, high, err := fromContainer(&pod.Containers[i], &o)
		if err != nil {
			return nil, err
		}
		if c.GPUs == 0 {
			continue
		}
		if r == nil {
			r = &Request{Containers: make([]Container, len(pod.Containers))}
		}
		r.Containers[i] = c
		r.HighPriority = r.HighPriority || high
	}
	if r == nil {
		return nil, nil
	}
	if n := len(pod.Containers); n > grant.MaxContainers {
		return nil, &Error{Key: "containers", Value: strconv.Itoa(n), Why: "a pod with GPUs may have at most " +
			strconv.Itoa(grant.MaxContainers)}
	}
	r.Kinds = make([]scheduler.Kind, len(pod.Containers))
	for i := range pod.Containers {
		r.Kinds[i] = pod.Containers[i].Kind
	}
	if err := r.Rules.read(pod); err != nil {
		return nil, err
	}
	for i := range r.Containers {
		if c := &r.Containers[i]; c.GPUs > 0 && r.Rules.Isolation == grant.IsolationHardware {
			c.whole()
		}
	}
	if r.Rules.GPUPolicy == "" {
		r.Rules.GPUPolicy = defaultGPUPolicy(pod, &o.Names)
	}
	r.Signature = r.sign()
	return r, nil
}

// defaultGPUPolicy is gpu-manager's own for its resources; empty: the cluster's.
func defaultGPUPolicy(pod *scheduler.Pod, names *Names) string {
	if names.VcudaCore != "" && slices.ContainsFunc(pod.Containers,
		func(c scheduler.Container) bool { return c.Resources[names.VcudaCore].Value > 0 }) {
		return choose.Tencent
	}
	return ""
}

// Error is an invalid request, for the pod's author.
type Error struct {
	// Container is a name; empty for the pod.
	Container string
	// Key is the resource, annotation or label; Value may be shortened.
	Key, Value string
	// Why includes what to do.
	Why string
}

func (e *Error) Error() string {
	text := e.Key + ": "
	if e.Container != "" {
		text = fmt.Sprintf("container %q: ", e.Container) + text
	}
	if e.Value != "" {
		text += e.Value + ": "
	}
	return text + e.Why
}

// Names are the resource names; an empty one disables the resource.
type Names struct {
	// HAMi's.
	Count, Memory, MemoryPercentage, Cores, Priority string
	// gpu-manager's.
	VcudaCore, VcudaMemory string
}

// DefaultNames are HAMi's and gpu-manager's.
func DefaultNames() Names {
	return Names{
		Count: api.ResourceGPU, Memory: api.ResourceMemory, MemoryPercentage: api.ResourceMemoryPercentage,
		Cores: api.ResourceCores, Priority: api.ResourcePriority,
		VcudaCore: api.ResourceVcudaCore, VcudaMemory: api.ResourceVcudaMemory,
	}
}

// Options are a cluster's settings, with HAMi's names.
type Options struct {
	Names Names
	// DefaultMemoryMiB is for containers without memory; 0: all of the GPU.
	DefaultMemoryMiB int64
	// DefaultCores is for containers without cores; 0: unlimited.
	DefaultCores int
	// DefaultCount is for containers with only memory or cores.
	DefaultCount int
	// MemoryFactor is the MiB in one unit of Names.Memory.
	MemoryFactor int64
	// VcudaLimitsWholeGPUs: Names.VcudaMemory limits whole GPUs too. gpu-manager gives these all their memory.
	VcudaLimitsWholeGPUs bool
}

// DefaultOptions are HAMi's and gpu-manager's defaults.
func DefaultOptions() Options {
	return Options{Names: DefaultNames(), DefaultCount: 1, MemoryFactor: 1}
}

// Rules are a pod's selection of GPUs and policies. Lists are sorted and unique; empty: any.
type Rules struct {
	// In lower case.
	UseTypes, AvoidTypes []string
	UseUUIDs, AvoidUUIDs []string
	NUMABind             bool
	Modes                []string
	// Isolation is the weakest that the pod accepts.
	Isolation grant.Isolation
	// Valid texts for package choose; empty: the cluster's.
	NodePolicy, GPUPolicy, Weights string
}

// TypeFits: the model contains one of UseTypes and none of AvoidTypes.
func (r *Rules) TypeFits(model string) bool {
	if len(r.UseTypes) == 0 && len(r.AvoidTypes) == 0 {
		return true
	}
	model = strings.ToLower(model)
	in := func(t string) bool { return strings.Contains(model, t) }
	return (len(r.UseTypes) == 0 || slices.ContainsFunc(r.UseTypes, in)) && !slices.ContainsFunc(r.AvoidTypes, in)
}

// UUIDFits: the GPU is in UseUUIDs and not in AvoidUUIDs.
func (r *Rules) UUIDFits(uuid string) bool {
	in := func(uuids []string) bool { _, found := slices.BinarySearch(uuids, uuid); return found }
	return (len(r.UseUUIDs) == 0 || in(r.UseUUIDs)) && !in(r.AvoidUUIDs)
}

// ModeFits: the mode is in Modes; empty is api.ModeShared.
func (r *Rules) ModeFits(mode string) bool {
	return len(r.Modes) == 0 || slices.Contains(r.Modes, cmp.Or(mode, api.ModeShared))
}

// IsolationFits: a share of a GPU with this isolation is enough, or, for hardware, all of it. An isolation that is not
// known is that of an agent which does not check what pods request.
func (r *Rules) IsolationFits(of grant.Isolation) bool {
	switch r.Isolation {
	case grant.IsolationDriver:
		return of >= grant.IsolationDriver
	case grant.IsolationLimiter, grant.IsolationHardware:
		return of > grant.IsolationAny
	}
	return true
}

func (r *Rules) read(pod *scheduler.Pod) error {
	if len(pod.Annotations) == 0 {
		return nil
	}
	n := annotationReader{annotations: pod.Annotations}
	r.UseTypes = n.list(api.AnnotationUseTypes, maxTypes, typeName)
	r.AvoidTypes = n.list(api.AnnotationAvoidTypes, maxTypes, typeName)
	r.UseUUIDs = n.list(api.AnnotationUseUUIDs, maxUUIDs, uuid)
	r.AvoidUUIDs = n.list(api.AnnotationAvoidUUIDs, maxUUIDs, uuid)
	r.NUMABind = n.boolean(api.AnnotationNUMABind)
	r.Modes = n.list(api.AnnotationMode, 3, mode)
	r.Isolation = n.isolation()
	if grant.OnlyMIG(pod.Annotations[api.AnnotationMode]) {
		r.Modes = nil // hardware isolation, which a whole GPU has too
	}
	r.NodePolicy = n.text(api.AnnotationNodePolicy, valid(choose.ParseNodePolicy))
	r.GPUPolicy = n.text(api.AnnotationGPUPolicy, valid(choose.ParseGPUPolicy))
	r.Weights = n.text(api.AnnotationWeights, valid(choose.ParseWeights))
	n.groupMin(pod.Group)
	// The node uses these at container creation, which is too late to report an error.
	n.ceiling(api.AnnotationCoreCeiling)
	n.ceiling(api.AnnotationVcudaCoreCeiling)
	return n.err
}

func typeName(e string) (string, error) { return strings.ToLower(e), nil }

func uuid(e string) (string, error) {
	if err := grant.ValidateUUID(e); err != nil {
		return "", fmt.Errorf("%s: %w", quote.Short(e), err)
	}
	return e, nil
}

func mode(e string) (string, error) {
	if e != api.ModeShared && e != api.ModeMIG && e != api.ModeMPS {
		return "", fmt.Errorf("unknown mode %s: use %s, %s or %s", quote.Short(e), api.ModeShared, api.ModeMIG, api.ModeMPS)
	}
	return e, nil
}

func valid[T any](parse func(string) (T, error)) func(string) error {
	return func(text string) error { _, err := parse(text); return err }
}

var kindLetters = [...]byte{scheduler.App: 'a', scheduler.Init: 'i', scheduler.Sidecar: 's'}

// sign lists each container's kind and amounts, "a1m3000c30;", then the rules, each a key and a quoted
// text.
func (r *Request) sign() string {
	var space [96]byte
	b := space[:0]
	for i := range r.Containers {
		c := &r.Containers[i]
		if c.GPUs == 0 {
			continue
		}
		b = append(b, kindLetters[r.Kinds[i]])
		b = strconv.AppendInt(b, int64(c.GPUs), 10)
		if c.MemoryMiB > 0 {
			b = strconv.AppendInt(append(b, 'm'), c.MemoryMiB, 10)
		} else {
			b = strconv.AppendInt(append(b, '%'), int64(c.MemoryPercent), 10)
		}
		if c.LeastMiB > 0 {
			b = strconv.AppendInt(append(b, 'l'), c.LeastMiB, 10)
		}
		b = append(strconv.AppendInt(append(b, 'c'), int64(c.Cores), 10), ';')
	}
	s := &r.Rules
	b = signList(b, 't', s.UseTypes)
	b = signList(b, 'T', s.AvoidTypes)
	b = signList(b, 'u', s.UseUUIDs)
	b = signList(b, 'U', s.AvoidUUIDs)
	if s.NUMABind {
		b = append(b, 'n')
	}
	b = signList(b, 'm', s.Modes)
	if s.Isolation > grant.IsolationAny {
		b = signText(b, 'I', s.Isolation.String())
	}
	b = signText(b, 'N', s.NodePolicy)
	b = signText(b, 'C', s.GPUPolicy)
	return string(signText(b, 'W', s.Weights))
}

func signList(b []byte, key byte, entries []string) []byte {
	for _, e := range entries {
		b = signText(b, key, e)
	}
	return b
}

func signText(b []byte, key byte, text string) []byte {
	if text == "" {
		return b
	}
	return strconv.AppendQuote(append(b, key), text)
}
