package request

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
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

// ModeFits: the mode is in Modes; empty is api.ModeShared.
func (r *Rules) ModeFits(mode string) bool {
	return len(r.Modes) == 0 || slices.Contains(r.Modes, cmp.Or(mode, api.ModeShared))
}

func (r *Rules) read(pod *scheduler.Pod) error {
	r.Group = pod.Labels[api.LabelGroup]
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
	r.NodePolicy = n.text(api.AnnotationNodePolicy, valid(choose.ParseNodePolicy))
	r.GPUPolicy = n.text(api.AnnotationGPUPolicy, valid(choose.ParseGPUPolicy))
	r.Weights = n.text(api.AnnotationWeights, valid(choose.ParseWeights))
	r.GroupMin = n.groupMin(r.Group)
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
