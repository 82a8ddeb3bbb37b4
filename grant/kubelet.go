package grant

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

const maxReplica = 1 << 20

const replicaSeparator = "::"

// FromReplicas returns the equal share of a container's replicas, or nil if it has none or a scheduler
// annotated its pod. A replica is the GPU's memory and compute time divided by the number of replicas, rounded down. A pod
// with this annotation is refused, because a runtime can copy a pod's annotations to its containers
// (containerd's pod_annotations). Errors are ErrMalformed, ErrUnknownGPU, or ErrOverbooked for a GPU that is
// too small.
func FromReplicas(pod Pod, container string, annotations map[string]string, gpus map[string]GPU) (*Grant, error) {
	if pod.Scheduled() {
		return nil, nil
	}
	if _, ok := pod.Annotations[api.AnnotationReplicas]; ok {
		return nil, inPod(pod, container, onPod(api.AnnotationReplicas))
	}
	value, ok := annotations[api.AnnotationReplicas]
	if !ok {
		return nil, nil
	}
	shares, err := equalShares(value, gpus)
	if err != nil {
		return nil, inPod(pod, container, inAnnotation(api.AnnotationReplicas, err))
	}
	return &Grant{Container: container, Shares: shares, Source: SourceReplicas}, nil
}

func equalShares(value string, gpus map[string]GPU) ([]Share, error) {
	if len(value) > MaxAnnotationBytes {
		return nil, Errorf(ErrMalformed, "%d bytes: at most %d are read", len(value), MaxAnnotationBytes)
	}
	seen := map[string]bool{}
	var shares []Share
	for id := range strings.SplitSeq(value, ",") {
		if seen[id] {
			return nil, Errorf(ErrMalformed, "replica %s: is listed twice", quote.Short(id))
		}
		seen[id] = true
		part, err := equalShare(id, gpus)
		if err != nil {
			return nil, err
		}
		i := IndexOf(shares, part.UUID)
		if i < 0 {
			shares = append(shares, part)
			continue
		}
		shares[i].MemoryMiB += part.MemoryMiB
		shares[i].CorePercent = min(shares[i].CorePercent+part.CorePercent, MaxCorePercent)
	}
	return shares, ValidateShares(shares)
}

func equalShare(id string, gpus map[string]GPU) (Share, error) {
	uuid, digits, ok := strings.Cut(id, replicaSeparator)
	if !ok || ValidateUUID(uuid) != nil {
		return Share{}, Errorf(ErrMalformed, "replica %s: must be <UUID>%s<n>", quote.Short(id), replicaSeparator)
	}
	gpu, ok := gpus[uuid]
	if !ok {
		return Share{}, Errorf(ErrUnknownGPU, "replica %s: this node has no such GPU, or no longer offers it: delete the pod so that the kubelet chooses again", quote.Short(id))
	}
	number, err := parseNumber(digits, 0, maxReplica)
	if err != nil {
		return Share{}, Errorf(ErrMalformed, "replica %s: must be numbered in plain digits from 0", quote.Short(id))
	}
	if number >= int64(gpu.Replicas) {
		return Share{}, Errorf(ErrUnknownGPU, "replica %s: the GPU has %d replicas now, numbered from 0: delete the pod so that the kubelet chooses again", quote.Short(id), gpu.Replicas)
	}
	share := Share{UUID: uuid, MemoryMiB: gpu.MemoryMiB / int64(gpu.Replicas), CorePercent: min(gpu.CorePercent/gpu.Replicas, MaxCorePercent)}
	// No compute time would mean that it isn't limited.
	if share.MemoryMiB == 0 || share.CorePercent == 0 {
		return Share{}, Errorf(ErrOverbooked, "replica %s: %d MiB and %d percent of compute time can't be divided by %d replicas: use a smaller --device-split-count",
			quote.Short(id), gpu.MemoryMiB, gpu.CorePercent, gpu.Replicas)
	}
	return share, nil
}

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
