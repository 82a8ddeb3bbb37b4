package wire

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
)

// DecodePod is what a pod's annotations say that it was given; nil: nothing, or the pod
// has ended. gpuslice.io/grant is read where it is there, by the containers' names, and
// a fault in it never leads to HAMi's, by their positions: the node does the same
// (package grant, FromPod), and what it wouldn't grant is an error here.
//
// The node is the one that the pod is bound to; of a pod that waits, the one that the
// annotations name.
//
// With keys, only what was signed with one of them for this pod and node is believed, as
// on the node (grant.FromPod). A pod that was bound before there were keys keeps what it holds
// on its node, so that a caller who counts what is there calls without keys too. Errors of
// signatures are grant.ErrSignature.
func DecodePod(p *scheduler.Pod, keys grant.Verifier) (*scheduler.Placement, error) {
	if p.Ended {
		return nil, nil
	}
	placement, err := decodePod(p, keys)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return placement, nil
}

func decodePod(p *scheduler.Pod, keys grant.Verifier) (*scheduler.Placement, error) {
	var placement *scheduler.Placement
	var err error
	if value, there := p.Annotations[grant.AnnotationGrant]; there {
		if placement, err = byName(p, value); err != nil {
			return nil, in(grant.AnnotationGrant, err)
		}
	} else if placement, err = byPosition(p); err != nil || placement == nil {
		return nil, err
	}
	if keys == nil {
		return placement, nil
	}
	return placement, verify(p, placement.Node, keys)
}

// verify says whether somebody who holds a key wrote the grant.
func verify(p *scheduler.Pod, node string, keys grant.Verifier) error {
	payload, ours := p.Annotations[grant.AnnotationGrant]
	signature, signed := p.Annotations[grant.AnnotationSignature]
	switch {
	case !ours:
		return fmt.Errorf("%w: HAMi's annotations can't be signed, and this cluster has keys", grant.ErrSignature)
	case !signed:
		return fmt.Errorf("%w: %s has no %s beside it", grant.ErrSignature, grant.AnnotationGrant, grant.AnnotationSignature)
	}
	return in(grant.AnnotationSignature, keys.Verify(p.UID, node, payload, signature))
}

// byName reads our own annotation. A name that no container of the pod has is refused: an
// ephemeral container could take it later.
func byName(p *scheduler.Pod, value string) (*scheduler.Placement, error) {
	decoded, err := grant.DecodeGrant(value)
	if err != nil {
		return nil, err
	}
	node, err := nodeOf(p, decoded.Node)
	if err != nil {
		return nil, err
	}
	placement := &scheduler.Placement{Node: node, Generation: decoded.Generation, Containers: make([][]grant.Share, len(p.Containers))}
	for i := range p.Containers {
		placement.Containers[i] = decoded.Containers[p.Containers[i].Name]
		delete(decoded.Containers, p.Containers[i].Name)
	}
	for name := range decoded.Containers {
		return nil, fmt.Errorf("its container %q is none of the pod's", name)
	}
	return placement, nil
}

// byPosition reads HAMi's annotations: the one that is never erased, or the other where
// it is alone.
func byPosition(p *scheduler.Pod) (*scheduler.Placement, error) {
	key := grant.AnnotationAllocated
	value, there := p.Annotations[key]
	if !there {
		key = grant.AnnotationToAllocate
		value = p.Annotations[key]
	}
	positional, err := grant.DecodeHAMi(value)
	if err != nil {
		return nil, in(key, err)
	}
	if positional.Empty() {
		return nil, nil
	}
	node, err := nodeOf(p, p.Annotations[grant.AnnotationNode])
	if err != nil {
		return nil, in(grant.AnnotationNode, err)
	}
	placement := &scheduler.Placement{Node: node, Containers: make([][]grant.Share, len(p.Containers))}
	for i, shares := range positional {
		switch {
		case len(shares) == 0:
		case i >= len(p.Containers):
			return nil, in(key, fmt.Errorf("slot %d: the pod has %d containers", i, len(p.Containers)))
		default:
			placement.Containers[i] = shares
		}
	}
	return placement, nil
}

// nodeOf is where the pod is, or will be.
func nodeOf(p *scheduler.Pod, named string) (string, error) {
	switch {
	case p.Node == "" && named == "":
		return "", errors.New("names no node, and the pod is on none")
	case p.Node != "" && named != "" && p.Node != named:
		return "", fmt.Errorf("node %s: the pod is on node %q, which grants it nothing: delete the pod so that it is scheduled again", quote.Short(named), p.Node)
	case p.Node != "":
		return p.Node, nil
	}
	return named, nil
}

// Annotations are what a pod gets in one patch before it is bound: ours, signed where
// there is a key, and HAMi's, so that its node half and its tools find what they look for
// (it serves the pod of its node that has waited longest in the phase "allocating").
func Annotations(p *scheduler.Pod, pl scheduler.Placement, key *grant.SigningKey, now time.Time) (map[string]string, error) {
	annotations, err := annotations(p, pl, key, now)
	if err != nil {
		return nil, fmt.Errorf("annotations of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return annotations, nil
}

func annotations(p *scheduler.Pod, pl scheduler.Placement, key *grant.SigningKey, now time.Time) (map[string]string, error) {
	if pl.Node == "" {
		return nil, errors.New("the placement has no node")
	}
	if len(pl.Containers) > len(p.Containers) {
		return nil, fmt.Errorf("the placement has %d containers, and the pod %d", len(pl.Containers), len(p.Containers))
	}
	named := &grant.PodGrant{Node: pl.Node, Generation: pl.Generation, Containers: map[string][]grant.Share{}}
	slots := make(grant.Positional, len(p.Containers))
	for i, shares := range pl.Containers {
		if len(shares) > 0 {
			named.Containers[p.Containers[i].Name], slots[i] = shares, shares
		}
	}
	payload, err := grant.EncodeGrant(named)
	if err != nil {
		return nil, err
	}
	positional, err := grant.EncodeHAMi(slots)
	if err != nil {
		return nil, err
	}
	seconds := strconv.FormatInt(now.Unix(), 10)
	out := map[string]string{
		grant.AnnotationGrant:      payload,
		grant.AnnotationNode:       pl.Node,
		grant.AnnotationToAllocate: positional,
		grant.AnnotationAllocated:  positional,
		AnnotationTime:             seconds,
		AnnotationBindPhase:        bindAllocating,
		AnnotationBindTime:         seconds,
	}
	if key != nil {
		if out[grant.AnnotationSignature], err = key.Sign(p.UID, pl.Node, payload); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Resized are the annotations that say what a bound pod has now, in place of those that say
// what it had. Slots that HAMi's device plugin has emptied stay empty.
func Resized(p *scheduler.Pod, pl scheduler.Placement, key *grant.SigningKey, now time.Time) (map[string]string, error) {
	all, err := Annotations(p, pl, key, now)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range []string{grant.AnnotationGrant, grant.AnnotationSignature, grant.AnnotationAllocated} {
		if value, there := all[name]; there {
			out[name] = value
		}
	}
	was, err := grant.DecodeHAMi(p.Annotations[grant.AnnotationToAllocate])
	if err != nil || was.Empty() {
		return out, nil // what can't be read is nobody's to fix
	}
	left := make(grant.Positional, len(p.Containers))
	for i := range min(len(was), len(pl.Containers)) {
		if len(was[i]) > 0 {
			left[i] = pl.Containers[i]
		}
	}
	out[grant.AnnotationToAllocate], err = grant.EncodeHAMi(left)
	return out, err
}
