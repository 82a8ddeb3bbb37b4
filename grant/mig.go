package grant

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/internal/quote"
)

// AnnotationMIGPrefix begins a container's annotation, not a pod's, of each MIG
// resource: the devices that the kubelet chose for it, "MIG-<UUID>::0,MIG-<UUID>::0". The
// rest of the name is the resource's, "gpuslice.io/mig-1g.10gb". Who writes it and who
// can't is as with AnnotationReplicas. A node that offers MIG devices as if they were
// GPUs has them in AnnotationReplicas.
const AnnotationMIGPrefix = "gpuslice.io/mig-"

// MIGAnnotation is the name of the annotation of a MIG resource, by the last part of
// the resource's name ("mig-1g.10gb").
func MIGAnnotation(resource string) string {
	return AnnotationMIGPrefix + strings.TrimPrefix(resource, "mig-")
}

// FromMIG returns the MIG devices that the kubelet chose for a container, or nil where
// it chose none. A MIG device is whole and one container's, and no scheduler of ours
// gives them out, so that the kubelet's choice is the grant, whatever becomes of
// containers that no scheduler spoke of: each device with all of its memory and compute
// time, in the order of the annotations' names and in theirs. In GPUs a MIG device is a
// GPU with one slot.
//
// It is all that the container gets. One that has scheduled, a scheduler's grant, or
// replicas of GPUs beside it is refused: a program sees either GPUs or a MIG device,
// and which one it was limited on would be left to chance.
//
// A pod that has an annotation of these names is refused, as in FromReplicas. Errors
// are as there.
func FromMIG(pod Pod, container string, annotations map[string]string, gpus map[string]GPU, scheduled *Grant) (*Grant, error) {
	for key := range pod.Annotations {
		if strings.HasPrefix(key, AnnotationMIGPrefix) {
			return nil, inPod(pod, container, onPod(key))
		}
	}
	keys := migKeys(annotations)
	if len(keys) == 0 {
		return nil, nil
	}
	if _, ok := pod.Annotations[AnnotationReplicas]; ok {
		return nil, inPod(pod, container, onPod(AnnotationReplicas))
	}
	var ids []string
	for _, key := range keys {
		if err := checkMIG(annotations[key]); err != nil {
			return nil, inPod(pod, container, inAnnotation(key, err))
		}
		ids = append(ids, annotations[key])
	}
	key := strings.Join(keys, ", ")
	if _, ok := annotations[AnnotationReplicas]; ok && !slices.Contains(keys, AnnotationReplicas) {
		return nil, inPod(pod, container, inAnnotation(key, mixed("replicas of GPUs")))
	}
	if scheduled != nil {
		return nil, inPod(pod, container, inAnnotation(key, mixed("a scheduler's grant")))
	}
	shares, err := equalShares(strings.Join(ids, ","), gpus)
	if err != nil {
		return nil, inPod(pod, container, inAnnotation(key, err))
	}
	return &Grant{Container: container, Shares: shares, Source: SourceMIG}, nil
}

// migKeys are the annotations that have MIG devices, sorted.
func migKeys(annotations map[string]string) (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[key]
		single := key == AnnotationReplicas && (IsMIG(value) || strings.Contains(value, ",MIG-"))
		if single || strings.HasPrefix(key, AnnotationMIGPrefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// checkMIG refuses what is not of MIG devices alone.
func checkMIG(value string) error {
	if len(value) > MaxAnnotationBytes {
		return Errorf(ErrMalformed, "%d bytes: at most %d are read", len(value), MaxAnnotationBytes)
	}
	for id := range strings.SplitSeq(value, ",") {
		if !IsMIG(id) {
			return Errorf(ErrMalformed, "device %s: must be MIG-<UUID>%s0, for MIG devices don't go with GPUs", quote.Short(id), replicaSeparator)
		}
	}
	return nil
}

// mixed refuses MIG devices beside something else.
func mixed(what string) error {
	return Errorf(ErrMalformed, "the container has %s too: a program sees either GPUs or a MIG device, so ask for one of them", what)
}

// onPod refuses an annotation of ours that its author can't have written.
func onPod(key string) error {
	return inAnnotation(key, Errorf(ErrMalformed, "is on the pod: the device plugin alone writes it, on containers: take it away"))
}
