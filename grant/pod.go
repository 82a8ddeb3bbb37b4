package grant

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Pod is a pod, as a container's request has it.
type Pod struct {
	UID         string
	Namespace   string
	Name        string
	Annotations map[string]string
}

// ContainerDevices is a container of a pod and the number of GPUs that the kubelet gave it.
type ContainerDevices struct {
	Name    string
	Devices int
}

// ContainerNames returns a pod's containers in the order of its spec: restartable init containers, then app
// containers. Others can be missing.
type ContainerNames interface {
	ContainerNames(ctx context.Context, pod Pod) ([]ContainerDevices, error)
}

// FromPod returns the container's grant on this node, or nil. gpuslice.io/grant takes precedence over HAMi's
// annotations, also if it is malformed. keys verify the grant's signature; nil: none is required; with keys,
// HAMi's annotations are rejected, because they can't be signed. names is required for several positions in
// HAMi's annotation. Errors name the pod, the container and the field. They are ErrSignature, ErrMalformed,
// ErrWrongNode or ErrAmbiguous, and wrap the error of names.
func FromPod(ctx context.Context, pod Pod, container, node string, names ContainerNames, keys Verifier) (*Grant, error) {
	grant, err := fromPod(ctx, pod, container, node, names, keys)
	if err != nil {
		return nil, inPod(pod, container, err)
	}
	return grant, nil
}

func inPod(pod Pod, container string, err error) error {
	return fmt.Errorf("pod %s/%s container %q: %w", pod.Namespace, pod.Name, container, err)
}

func inAnnotation(key string, err error) error { return fmt.Errorf("annotation %s: %w", key, err) }

func fromPod(ctx context.Context, pod Pod, container, node string, names ContainerNames, keys Verifier) (*Grant, error) {
	if value, ok := pod.Annotations[api.AnnotationGrant]; ok {
		if keys != nil {
			if err := verify(pod, node, value, keys); err != nil {
				return nil, err
			}
		}
		grant, err := fromNamed(value, container, node)
		if err != nil {
			return nil, inAnnotation(api.AnnotationGrant, err)
		}
		return grant, nil
	}
	key, positional, err := readPositional(pod.Annotations)
	if err != nil {
		return nil, err
	}
	if positional.Empty() {
		return nil, nil
	}
	if keys != nil {
		return nil, Errorf(ErrSignature, "annotation %s: this node accepts signed grants only, and HAMi's annotations can't be signed: use a scheduler that writes %s and %s, or run the agent without --grant-public-key-file",
			key, api.AnnotationGrant, api.AnnotationSignature)
	}
	if chosen, ok := pod.Annotations[api.AnnotationHAMiNode]; ok && chosen != node {
		return nil, Errorf(ErrWrongNode, "annotation %s: the GPUs were chosen on node %s, this is node %q: delete the pod so that it is scheduled again",
			api.AnnotationHAMiNode, quote.Short(chosen), node)
	}
	slot, err := findSlot(ctx, positional, pod, container, names)
	if err != nil {
		return nil, inAnnotation(key, err)
	}
	if slot == noSlot || len(positional[slot]) == 0 {
		return nil, nil
	}
	return &Grant{Container: container, Shares: positional[slot], Source: SourceHAMi, Slot: &slot}, nil
}

func fromNamed(value, container, node string) (*Grant, error) {
	pod, err := DecodeGrant(value)
	if err != nil {
		return nil, err
	}
	if pod.Node != "" && pod.Node != node {
		return nil, Errorf(ErrWrongNode, "node %s: the grant was made for that node, this is node %q: delete the pod so that it is scheduled again",
			quote.Short(pod.Node), node)
	}
	shares, ok := pod.Containers[container]
	if !ok {
		return nil, nil
	}
	return &Grant{Container: container, Shares: shares, Source: SourceNamed}, nil
}

// readPositional reads HAMi's annotations, and returns the key that it uses: "allocated" if present, because
// HAMi's device plugin empties "to-allocate" position by position. If both are present and contradict, another
// program wrote one, and both are rejected.
func readPositional(annotations map[string]string) (key string, positional Positional, err error) {
	pending, isPending := annotations[api.AnnotationHAMiToAllocate]
	allocated, isAllocated := annotations[api.AnnotationHAMiAllocated]
	var left, whole Positional
	if isPending {
		if left, err = DecodeHAMi(pending); err != nil {
			return "", nil, inAnnotation(api.AnnotationHAMiToAllocate, err)
		}
	}
	if !isAllocated {
		return api.AnnotationHAMiToAllocate, left, nil
	}
	if whole, err = DecodeHAMi(allocated); err != nil {
		return "", nil, inAnnotation(api.AnnotationHAMiAllocated, err)
	}
	if isPending && !isRemainder(left, whole) {
		return "", nil, Errorf(ErrMalformed, "annotation %s: contradicts %s: both must be equal except for emptied positions; delete the pod so that it is scheduled again",
			api.AnnotationHAMiToAllocate, api.AnnotationHAMiAllocated)
	}
	return api.AnnotationHAMiAllocated, whole, nil
}

func isRemainder(left, whole Positional) bool {
	if left.Empty() {
		return true
	}
	return slices.EqualFunc(left, whole, func(l, w []Share) bool {
		return len(l) == 0 || slices.Equal(l, w)
	})
}
