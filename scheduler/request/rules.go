package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// The annotations by which a pod's author chooses cards, by HAMi's names.
const (
	AnnotationUseTypes   = "nvidia.com/use-gputype"
	AnnotationAvoidTypes = "nvidia.com/nouse-gputype"
	AnnotationUseUUIDs   = "nvidia.com/use-gpuuuid"
	AnnotationAvoidUUIDs = "nvidia.com/nouse-gpuuuid"
	AnnotationNUMABind   = "nvidia.com/numa-bind"
	AnnotationMode       = "nvidia.com/vgpu-mode"
	AnnotationNodePolicy = "hami.io/node-scheduler-policy"
	AnnotationCardPolicy = "hami.io/gpu-scheduler-policy"
	AnnotationWeights    = "hami.io/device-scoring-weights"
)

// A pod's group, all of whose pods are placed or none.
const (
	// LabelGroup names it, inside the pod's namespace.
	LabelGroup = "scheduling.x-k8s.io/pod-group"
	// AnnotationGroupMin is how many of its pods have to be placed together.
	AnnotationGroupMin = "gpuslice.io/pod-group-min"
)

// The modes of a card.
const (
	ModeShared = "hami-core"
	ModeMIG    = "mig"
	ModeMPS    = "mps"
)

// Bounds on what a pod may say, so that looking at a card costs little whoever asks.
const (
	maxListBytes   = 64 << 10
	maxTypes       = 64
	maxUUIDs       = 1024
	maxPolicyBytes = 256
	maxGroup       = 10_000
)

// Rules are what a pod's annotations say of cards and policies. Lists are sorted and
// have nothing twice; none means that all will do.
type Rules struct {
	// UseTypes and AvoidTypes are in lower case: see TypeFits.
	UseTypes, AvoidTypes []string
	UseUUIDs, AvoidUUIDs []string
	NUMABind             bool
	// Modes are those that will do, sorted and with commas between; empty: all.
	Modes string
	// NodePolicy, CardPolicy and Weights are package choose's to read; empty: the cluster's.
	NodePolicy, CardPolicy, Weights string
	// Group is the pod's group; empty: none. GroupMin is 0 where the pod says no number.
	Group    string
	GroupMin int
}

// TypeFits says whether a card of a model will do: it has one of UseTypes in it, if there
// are any, and none of AvoidTypes.
func (r *Rules) TypeFits(model string) bool {
	if len(r.UseTypes) == 0 && len(r.AvoidTypes) == 0 {
		return true
	}
	model = strings.ToLower(model)
	in := func(t string) bool { return strings.Contains(model, t) }
	return (len(r.UseTypes) == 0 || slices.ContainsFunc(r.UseTypes, in)) && !slices.ContainsFunc(r.AvoidTypes, in)
}

// UUIDFits says whether a card will do: it is one of UseUUIDs, if there are any, and none
// of AvoidUUIDs.
func (r *Rules) UUIDFits(uuid string) bool {
	if len(r.UseUUIDs) > 0 {
		if _, found := slices.BinarySearch(r.UseUUIDs, uuid); !found {
			return false
		}
	}
	if len(r.AvoidUUIDs) > 0 {
		if _, found := slices.BinarySearch(r.AvoidUUIDs, uuid); found {
			return false
		}
	}
	return true
}

// ModeFits says whether a card of a mode will do; no mode is ModeShared.
func (r *Rules) ModeFits(mode string) bool {
	if r.Modes == "" {
		return true
	}
	if mode == "" {
		mode = ModeShared
	}
	for m := range strings.SplitSeq(r.Modes, ",") {
		if m == mode {
			return true
		}
	}
	return false
}

// read reads the annotations and labels of a pod that asks for cards.
func (r *Rules) read(pod *scheduler.Pod) error {
	r.Group = pod.Labels[LabelGroup]
	if len(pod.Annotations) == 0 {
		return nil
	}
	for _, a := range [...]struct {
		key  string
		read func(value string) error
	}{
		{AnnotationUseTypes, list(&r.UseTypes, maxTypes, typeName)},
		{AnnotationAvoidTypes, list(&r.AvoidTypes, maxTypes, typeName)},
		{AnnotationUseUUIDs, list(&r.UseUUIDs, maxUUIDs, uuid)},
		{AnnotationAvoidUUIDs, list(&r.AvoidUUIDs, maxUUIDs, uuid)},
		{AnnotationNUMABind, r.readNUMABind},
		{AnnotationMode, r.readModes},
		{AnnotationNodePolicy, text(&r.NodePolicy)},
		{AnnotationCardPolicy, text(&r.CardPolicy)},
		{AnnotationWeights, text(&r.Weights)},
		{AnnotationGroupMin, r.readGroupMin},
	} {
		value, there := pod.Annotations[a.key]
		if !there {
			continue
		}
		if err := a.read(value); err != nil {
			return &Error{Key: a.key, Value: show(value), Why: err.Error()}
		}
	}
	// The node reads it when the container is made, which is late to be told.
	for _, key := range []string{grant.AnnotationCoreCeiling, grant.AnnotationVcudaCoreCeiling} {
		value, there := pod.Annotations[key]
		if !there {
			continue
		}
		if _, err := grant.CoreCeiling(grant.Pod{Annotations: map[string]string{key: value}}, ""); err != nil {
			return &Error{Key: key, Value: show(value), Why: fmt.Sprintf("must be 1 to %d percent of a card, in plain digits", grant.MaxCorePercent)}
		}
	}
	return nil
}

// list reads entries with commas between; nothing but spaces is no list (HAMi's rule).
func list(to *[]string, most int, entry func(string) (string, error)) func(string) error {
	return func(value string) error {
		if len(value) > maxListBytes {
			return fmt.Errorf("may have at most %d bytes", maxListBytes)
		}
		if strings.TrimSpace(value) == "" {
			return nil
		}
		if n := strings.Count(value, ",") + 1; n > most {
			return fmt.Errorf("has %d entries, and may have %d", n, most)
		}
		for e := range strings.SplitSeq(value, ",") {
			e = strings.TrimSpace(e)
			if e == "" {
				return fmt.Errorf("has an empty entry: write entries with one comma between")
			}
			e, err := entry(e)
			if err != nil {
				return err
			}
			*to = append(*to, e)
		}
		slices.Sort(*to)
		*to = slices.Compact(*to)
		return nil
	}
}

func typeName(e string) (string, error) { return strings.ToLower(e), nil }

func uuid(e string) (string, error) {
	if err := grant.ValidateUUID(e); err != nil {
		return "", fmt.Errorf("%s: %w", show(e), err)
	}
	return e, nil
}

// text takes a policy's text as it is.
func text(to *string) func(string) error {
	return func(value string) error {
		if len(value) > maxPolicyBytes {
			return fmt.Errorf("may have at most %d bytes", maxPolicyBytes)
		}
		*to = strings.TrimSpace(value)
		return nil
	}
}

func (r *Rules) readNUMABind(value string) (err error) {
	if r.NUMABind, err = strconv.ParseBool(strings.TrimSpace(value)); err != nil {
		return fmt.Errorf("must be true or false")
	}
	return nil
}

// readModes reads modes with commas between.
func (r *Rules) readModes(value string) error {
	var modes []string
	if err := list(&modes, 3, func(e string) (string, error) {
		if e != ModeShared && e != ModeMIG && e != ModeMPS {
			return "", fmt.Errorf("%s is no mode: there are %s, %s and %s", show(e), ModeShared, ModeMIG, ModeMPS)
		}
		return e, nil
	})(value); err != nil {
		return err
	}
	r.Modes = strings.Join(modes, ",")
	return nil
}

func (r *Rules) readGroupMin(value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > maxGroup {
		return fmt.Errorf("must be a number of pods from 1 to %d", maxGroup)
	}
	if r.Group == "" {
		return fmt.Errorf("the pod is in no group: give it the label %s", LabelGroup)
	}
	r.GroupMin = n
	return nil
}
