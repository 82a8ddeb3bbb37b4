package wire

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
)

// DecodePod returns the placement in a pod's annotations; nil: none, or the pod has ended. gpuslice.io/grant
// takes precedence, also if invalid, as on the node (grant.FromPod). For a pending pod, the annotations name
// the node. With keys, the grant has to be signed for this pod and node (grant.ErrSignature).
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
	granted, err := grant.Decode(p.Annotations)
	if err != nil || granted == nil {
		return nil, err
	}
	placement := &scheduler.Placement{Generation: granted.Generation}
	if placement.Node, err = nodeOf(p, granted.Node); err != nil {
		return nil, in(granted.NodeKey, err)
	}
	if placement.Containers, err = containers(p, granted); err != nil {
		return nil, in(granted.Key, err)
	}
	if keys == nil {
		return placement, nil
	}
	return placement, verify(p, placement.Node, granted, keys)
}

func verify(p *scheduler.Pod, node string, granted *grant.Granted, keys grant.Verifier) error {
	d := granted.Dialect
	if d.Signature == "" {
		return fmt.Errorf("%w: %s's annotations can't be signed, but signing keys are configured", grant.ErrSignature, d.Name)
	}
	signature, signed := p.Annotations[d.Signature]
	if !signed {
		return fmt.Errorf("%w: %s without %s", grant.ErrSignature, granted.Key, d.Signature)
	}
	return in(d.Signature, keys.Verify(p.UID, node, p.Annotations[granted.Key], signature))
}

// containers returns the shares by the position of the pod's containers. It rejects names and positions of no
// container: an ephemeral container could use them later.
func containers(p *scheduler.Pod, granted *grant.Granted) ([][]grant.Share, error) {
	all := make([][]grant.Share, len(p.Containers))
	places := places(p, granted.Dialect.Requesters)
	for i, shares := range granted.Positional {
		switch {
		case len(shares) == 0:
		case i >= len(places):
			return nil, fmt.Errorf("position %d: the pod has %d containers with a position", i, len(places))
		default:
			all[places[i]] = shares
		}
	}
	for i := range p.Containers {
		if shares, ok := granted.Named[p.Containers[i].Name]; ok {
			all[i] = shares
			delete(granted.Named, p.Containers[i].Name)
		}
	}
	for name := range granted.Named {
		return nil, fmt.Errorf("the pod has no container %q", name)
	}
	return all, nil
}

// places returns the container of each position of a grant.
func places(p *scheduler.Pod, requesters []string) (places []int) {
	for i := range p.Containers {
		c := &p.Containers[i]
		if requesters == nil || c.Kind == scheduler.App && slices.ContainsFunc(requesters, func(name string) bool { return c.Resources[name].Value > 0 }) {
			places = append(places, i)
		}
	}
	return places
}

func nodeOf(p *scheduler.Pod, named string) (string, error) {
	switch {
	case p.Node == "" && named == "":
		return "", errors.New("no node, and the pod is not bound")
	case p.Node != "" && named != "" && p.Node != named:
		return "", fmt.Errorf("node %s: the pod is on node %q, which rejects this grant: delete the pod so that it is "+
			"scheduled again", quote.Short(named), p.Node)
	case p.Node != "":
		return p.Node, nil
	}
	return named, nil
}

// Annotations returns the annotations for a pod that is about to be bound: ours, signed if key is set, and
// HAMi's.
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
		return nil, fmt.Errorf("the placement has %d containers, the pod has %d", len(pl.Containers), len(p.Containers))
	}
	named := &grant.PodGrant{Node: pl.Node, Generation: pl.Generation, Containers: map[string][]grant.Share{}}
	positions := make(grant.Positional, len(p.Containers))
	for i, shares := range pl.Containers {
		if len(shares) > 0 {
			named.Containers[p.Containers[i].Name], positions[i] = shares, shares
		}
	}
	payload, err := grant.EncodeGrant(named)
	if err != nil {
		return nil, err
	}
	positional, err := grant.EncodeHAMi(positions)
	if err != nil {
		return nil, err
	}
	seconds := strconv.FormatInt(now.Unix(), 10)
	out := map[string]string{
		api.AnnotationGrant:          payload,
		api.AnnotationHAMiNode:       pl.Node,
		api.AnnotationHAMiToAllocate: positional,
		api.AnnotationHAMiAllocated:  positional,
		api.AnnotationHAMiTime:       seconds,
		api.AnnotationHAMiBindPhase:  bindPhase(pl),
		api.AnnotationHAMiBindTime:   seconds,
	}
	if key != nil {
		if out[api.AnnotationSignature], err = key.Sign(p.UID, pl.Node, payload); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// bindPhase: on a node with gpuslice's agent the grant is complete, and nothing allocates later.
func bindPhase(pl scheduler.Placement) string {
	if pl.HAMi {
		return api.HAMiAllocating
	}
	return api.HAMiSuccess
}

// Resized returns the annotations after a resize. Positions that HAMi's device plugin has emptied stay
// empty.
func Resized(p *scheduler.Pod, pl scheduler.Placement, key *grant.SigningKey, now time.Time) (map[string]string, error) {
	all, err := Annotations(p, pl, key, now)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range []string{api.AnnotationGrant, api.AnnotationSignature, api.AnnotationHAMiAllocated} {
		if value, ok := all[name]; ok {
			out[name] = value
		}
	}
	was, err := grant.DecodeHAMi(p.Annotations[api.AnnotationHAMiToAllocate])
	if err != nil || was.Empty() {
		return out, nil // invalid, but not ours to fix
	}
	left := make(grant.Positional, len(p.Containers))
	for i := range min(len(was), len(pl.Containers)) {
		if len(was[i]) > 0 {
			left[i] = pl.Containers[i]
		}
	}
	out[api.AnnotationHAMiToAllocate], err = grant.EncodeHAMi(left)
	return out, err
}
