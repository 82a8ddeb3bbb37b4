package grant

import (
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
