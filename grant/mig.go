package grant

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// MIGAnnotation returns the annotation of a MIG resource, by the last part of its name ("mig-1g.10gb").
func MIGAnnotation(resource string) string {
	return api.AnnotationMIGPrefix + strings.TrimPrefix(resource, "mig-")
}

// FromMIG returns the MIG devices that the kubelet chose for a container, or nil. They need no scheduler's
// grant, because a MIG device has one container. A container with a scheduler's grant (scheduled) or replicas
// of GPUs is refused: a program sees either GPUs or a MIG device. A pod with such an annotation is refused, as
// in FromReplicas.
func FromMIG(pod Pod, container string, annotations map[string]string, gpus map[string]GPU, scheduled *Grant) (*Grant, error) {
	for key := range pod.Annotations {
		if strings.HasPrefix(key, api.AnnotationMIGPrefix) {
			return nil, inPod(pod, container, onPod(key))
		}
	}
	keys := migKeys(annotations)
	if len(keys) == 0 {
		return nil, nil
	}
	if _, ok := pod.Annotations[api.AnnotationReplicas]; ok {
		return nil, inPod(pod, container, onPod(api.AnnotationReplicas))
	}
	var ids []string
	for _, key := range keys {
		if err := checkMIG(annotations[key]); err != nil {
			return nil, inPod(pod, container, inAnnotation(key, err))
		}
		ids = append(ids, annotations[key])
	}
	key := strings.Join(keys, ", ")
	if _, ok := annotations[api.AnnotationReplicas]; ok && !slices.Contains(keys, api.AnnotationReplicas) {
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

func migKeys(annotations map[string]string) (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[key]
		single := key == api.AnnotationReplicas && (IsMIG(value) || strings.Contains(value, ",MIG-"))
		if single || strings.HasPrefix(key, api.AnnotationMIGPrefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

func checkMIG(value string) error {
	if len(value) > MaxAnnotationBytes {
		return Errorf(ErrMalformed, "%d bytes: at most %d are read", len(value), MaxAnnotationBytes)
	}
	for id := range strings.SplitSeq(value, ",") {
		if !IsMIG(id) {
			return Errorf(ErrMalformed, "device %s: must be MIG-<UUID>%s0, because MIG devices and GPUs can't be mixed", quote.Short(id), replicaSeparator)
		}
	}
	return nil
}

func mixed(what string) error {
	return Errorf(ErrMalformed, "the container has %s too: a program sees either GPUs or a MIG device, so request one of them", what)
}

func onPod(key string) error {
	return inAnnotation(key, Errorf(ErrMalformed, "is on the pod, but only the device plugin writes it, on containers: remove it"))
}
