package grant

import (
	"context"
	"fmt"

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
	d, key := dialectOf(pod.Annotations)
	if d == nil {
		return nil, nil
	}
	if keys != nil && d.Signature != "" {
		if err := verify(pod, node, d, key, keys); err != nil {
			return nil, err
		}
	}
	granted, err := d.read(pod.Annotations, key)
	if err != nil {
		return nil, err
	}
	if err := granted.checkCopies(pod.Annotations); err != nil || granted.Empty() {
		return nil, err
	}
	if keys != nil && d.Signature == "" {
		return nil, Errorf(ErrSignature, "annotation %s: this node accepts signed grants only, and %s's annotations can't be signed: use a scheduler that writes %s and %s, or run the agent without --grant-public-key-file",
			key, d.Name, api.AnnotationGrant, api.AnnotationSignature)
	}
	if _, chosen := pod.Annotations[granted.NodeKey]; chosen && granted.Node != node && (granted.Node != "" || d.Node != "") {
		return nil, Errorf(ErrWrongNode, "annotation %s: the GPUs were chosen on node %s, this is node %q: delete the pod so that it is scheduled again",
			granted.NodeKey, quote.Short(granted.Node), node)
	}
	if granted.Named != nil {
		shares, ok := granted.Named[container]
		if !ok {
			return nil, nil
		}
		return &Grant{Container: container, Shares: shares, Source: d.Source}, nil
	}
	find := findPosition
	if d.Requesters != nil {
		find = findRequester
	}
	position, err := find(ctx, granted.Positional, pod, container, names)
	if err != nil {
		return nil, inAnnotation(key, err)
	}
	if position == noPosition || len(granted.Positional[position]) == 0 {
		return nil, nil
	}
	return &Grant{Container: container, Shares: granted.Positional[position], Source: d.Source, Position: &position}, nil
}

// CoreCeiling returns a pod's soft ceiling: how much of its GPUs' compute time its containers can use while others
// are idle, in percent of a GPU; 0: none. gpuslice.io/core-ceiling takes precedence. Errors are ErrMalformed.
func CoreCeiling(pod Pod, container string) (int, error) {
	for _, key := range []string{api.AnnotationCoreCeiling, api.AnnotationVcudaCoreCeiling} {
		value, ok := pod.Annotations[key]
		if !ok {
			continue
		}
		percent, err := parseNumber(value, 1, MaxCorePercent)
		if err != nil {
			return 0, inPod(pod, container, inAnnotation(key, Errorf(ErrMalformed, "%s: must be 1 to %d percent of a GPU, in plain digits", quote.Short(value), MaxCorePercent)))
		}
		return int(percent), nil
	}
	return 0, nil
}
