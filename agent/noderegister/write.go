package noderegister

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// write reads the node, and writes what differs from what is wanted.
func (p *Publisher) write(ctx context.Context, leaving bool) error {
	got, err := p.cfg.Client.Get(ctx, p.cfg.NodeName)
	if err != nil {
		return fmt.Errorf("read the node: %w", err)
	}
	p.setLabels(got.Labels)
	if !leaving {
		node, known := p.cfg.Node()
		if !known {
			return nil
		}
		p.last, p.known = node, true
	}
	wanted := Render(leavingNode(p.last, leaving), p.cfg.Options)
	if leaving {
		// HAMi's annotation stays, as not healthy, for those who keep what they know. Ours
		// goes before HAMi's with our scheduler: left behind, it would for good, whoever
		// registers the node after us.
		delete(wanted.Annotations, AnnotationGPUs)
	}
	diff := difference(got.ObjectMeta, wanted)
	if answer, write := p.cfg.Options.Handshake.answer(got.Annotations[AnnotationHandshake], wanted, leaving, time.Now()); write {
		diff.Annotations[AnnotationHandshake] = &answer
	}
	if diff.empty() {
		return nil
	}
	after, err := p.cfg.Client.Patch(ctx, p.cfg.NodeName, diff.patch())
	if err != nil {
		return fmt.Errorf("write to the node: %w", err)
	}
	p.setLabels(after.Labels)
	p.cfg.Log.Info("node told", "node", p.cfg.NodeName,
		"annotations", slices.Sorted(maps.Keys(diff.Annotations)), "labels", slices.Sorted(maps.Keys(diff.Labels)))
	return nil
}

// leavingNode is a node whose devices may not be given out any more.
func leavingNode(n Node, leaving bool) Node {
	if leaving {
		n.Devices = slices.Clone(n.Devices)
		for i := range n.Devices {
			n.Devices[i].Healthy = false
		}
	}
	return n
}
