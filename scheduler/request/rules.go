package request

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
)

// HAMi's annotations that select GPUs and policies.
const (
	AnnotationUseTypes   = "nvidia.com/use-gputype"
	AnnotationAvoidTypes = "nvidia.com/nouse-gputype"
	AnnotationUseUUIDs   = "nvidia.com/use-gpuuuid"
	AnnotationAvoidUUIDs = "nvidia.com/nouse-gpuuuid"
	AnnotationNUMABind   = "nvidia.com/numa-bind"
	AnnotationMode       = "nvidia.com/vgpu-mode"
	AnnotationNodePolicy = "hami.io/node-scheduler-policy"
	AnnotationGPUPolicy  = "hami.io/gpu-scheduler-policy"
	AnnotationWeights    = "hami.io/device-scoring-weights"
)

// A pod group is placed completely or not at all.
const (
	// LabelGroup is the group's name in the namespace.
	LabelGroup = "scheduling.x-k8s.io/pod-group"
	// AnnotationGroupMin is how many of its pods have to be placed together.
	AnnotationGroupMin = "gpuslice.io/pod-group-min"
)

const (
	ModeShared = "hami-core"
	ModeMIG    = "mig"
	ModeMPS    = "mps"
)

// Rules are a pod's selection of GPUs and policies. Lists are sorted and unique; empty: any.
type Rules struct {
	// In lower case.
	UseTypes, AvoidTypes []string
	UseUUIDs, AvoidUUIDs []string
	NUMABind             bool
	Modes                []string
	// Valid texts for package choose; empty: the cluster's.
	NodePolicy, GPUPolicy, Weights string
	// GroupMin is 0 if not set.
	Group    string
	GroupMin int
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

// ModeFits: the mode is in Modes; empty is ModeShared.
func (r *Rules) ModeFits(mode string) bool {
	return len(r.Modes) == 0 || slices.Contains(r.Modes, cmp.Or(mode, ModeShared))
}

func (r *Rules) read(pod *scheduler.Pod) error {
	r.Group = pod.Labels[LabelGroup]
	if len(pod.Annotations) == 0 {
		return nil
	}
	n := annotationReader{annotations: pod.Annotations}
	r.UseTypes = n.list(AnnotationUseTypes, maxTypes, typeName)
	r.AvoidTypes = n.list(AnnotationAvoidTypes, maxTypes, typeName)
	r.UseUUIDs = n.list(AnnotationUseUUIDs, maxUUIDs, uuid)
	r.AvoidUUIDs = n.list(AnnotationAvoidUUIDs, maxUUIDs, uuid)
	r.NUMABind = n.boolean(AnnotationNUMABind)
	r.Modes = n.list(AnnotationMode, 3, mode)
	r.NodePolicy = n.text(AnnotationNodePolicy, valid(choose.ParseNodePolicy))
	r.GPUPolicy = n.text(AnnotationGPUPolicy, valid(choose.ParseGPUPolicy))
	r.Weights = n.text(AnnotationWeights, valid(choose.ParseWeights))
	r.GroupMin = n.groupMin(r.Group)
	// The node uses these at container creation, which is too late to report an error.
	n.ceiling(grant.AnnotationCoreCeiling)
	n.ceiling(grant.AnnotationVcudaCoreCeiling)
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
	if e != ModeShared && e != ModeMIG && e != ModeMPS {
		return "", fmt.Errorf("unknown mode %s: use %s, %s or %s", quote.Short(e), ModeShared, ModeMIG, ModeMPS)
	}
	return e, nil
}

func valid[T any](parse func(string) (T, error)) func(string) error {
	return func(text string) error { _, err := parse(text); return err }
}
