package grant

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/internal/quote"
)

// Pod is what a container request tells of its pod.
type Pod struct {
	UID         string
	Namespace   string
	Name        string
	Annotations map[string]string
}

// ContainerDevices is a container of a pod and how many of our devices the
// kubelet gave it.
type ContainerDevices struct {
	Name    string
	Devices int
}

// ContainerNames tells a pod's containers in the order of its spec. It may
// leave plain init containers and ephemeral containers out, and must list every
// other: restartable init containers first, then all app containers (what the
// kubelet's PodResources service does).
type ContainerNames interface {
	ContainerNames(ctx context.Context, pod Pod) ([]ContainerDevices, error)
}

// FromPod returns what the pod's annotations grant to the container on this
// node, or nil if they grant it nothing. gpuslice.io/grant is read where it is
// present, and a fault in it never leads to HAMi's annotation: a pod is driven
// by one scheduler.
//
// A positional annotation with one slot is that container's which asks. One
// with several is tied to the container by names, which is asked only then and
// may be nil (such an annotation is then refused with ErrAmbiguous).
//
// Who wrote the annotations is Authenticate's to say.
//
// Errors name the pod, the container and the field. They are ErrMalformed,
// ErrWrongNode or ErrAmbiguous, and wrap what names answered.
func FromPod(ctx context.Context, pod Pod, container, node string, names ContainerNames) (*Grant, error) {
	grant, err := fromPod(ctx, pod, container, node, names)
	if err != nil {
		return nil, inPod(pod, container, err)
	}
	return grant, nil
}

// inPod and inAnnotation say where a fault is.
func inPod(pod Pod, container string, err error) error {
	return fmt.Errorf("pod %s/%s container %q: %w", pod.Namespace, pod.Name, container, err)
}

func inAnnotation(key string, err error) error { return fmt.Errorf("annotation %s: %w", key, err) }

func fromPod(ctx context.Context, pod Pod, container, node string, names ContainerNames) (*Grant, error) {
	if value, ok := pod.Annotations[AnnotationGrant]; ok {
		grant, err := fromNamed(value, container, node)
		if err != nil {
			return nil, inAnnotation(AnnotationGrant, err)
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
	if chosen, ok := pod.Annotations[AnnotationNode]; ok && chosen != node {
		return nil, Errorf(ErrWrongNode, "annotation %s: the GPUs were chosen on node %s, this is node %q: delete the pod so that it is scheduled again",
			AnnotationNode, quote.Short(chosen), node)
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

// fromNamed looks the container up in our own annotation.
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

// readPositional reads HAMi's two annotations into one grant, and says which
// key it speaks of.
//
// "allocated" is preferred: HAMi's scheduler writes the same value into both,
// and "to-allocate" is emptied slot by slot by HAMi's device plugin, so that a
// container that is created again would find its slot empty. "to-allocate" is
// read when it is alone. When both are there, "to-allocate" must be "allocated"
// with some slots emptied; anything else means that one of them was not
// written by the scheduler, and neither is believed.
func readPositional(annotations map[string]string) (key string, positional Positional, err error) {
	pending, isPending := annotations[AnnotationToAllocate]
	allocated, isAllocated := annotations[AnnotationAllocated]
	var left, whole Positional
	if isPending {
		if left, err = DecodeHAMi(pending); err != nil {
			return "", nil, inAnnotation(AnnotationToAllocate, err)
		}
	}
	if !isAllocated {
		return AnnotationToAllocate, left, nil
	}
	if whole, err = DecodeHAMi(allocated); err != nil {
		return "", nil, inAnnotation(AnnotationAllocated, err)
	}
	if isPending && !isRemainder(left, whole) {
		return "", nil, Errorf(ErrMalformed, "annotation %s: contradicts %s: it must be the same but for emptied slots; delete the pod so that it is scheduled again",
			AnnotationToAllocate, AnnotationAllocated)
	}
	return AnnotationAllocated, whole, nil
}

// isRemainder says whether left is whole with no, some or all slots emptied.
func isRemainder(left, whole Positional) bool {
	if left.Empty() {
		return true
	}
	return slices.EqualFunc(left, whole, func(l, w []Share) bool {
		return len(l) == 0 || slices.Equal(l, w)
	})
}
