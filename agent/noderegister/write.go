package noderegister

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

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
		// HAMi's annotation stays, as unhealthy: the oldest schedulers would keep the devices
		// without it. Ours is removed: another agent may register the node after this one.
		delete(wanted.Annotations, api.AnnotationNodeGPUs)
	}
	diff := difference(got.ObjectMeta, wanted)
	if answer, write := p.cfg.Options.Handshake.answer(got.Annotations[api.AnnotationHAMiHandshake], wanted, leaving, time.Now()); write {
		diff.Annotations[api.AnnotationHAMiHandshake] = &answer
	}
	if diff.empty() {
		return nil
	}
	after, err := p.cfg.Client.Patch(ctx, p.cfg.NodeName, diff.patch())
	if err != nil {
		return fmt.Errorf("write to the node: %w", err)
	}
	p.setLabels(after.Labels)
	p.cfg.Log.Info("node annotations updated", "node", p.cfg.NodeName,
		"annotations", slices.Sorted(maps.Keys(diff.Annotations)), "labels", slices.Sorted(maps.Keys(diff.Labels)))
	return nil
}

func leavingNode(n Node, leaving bool) Node {
	if leaving {
		n.Devices = slices.Clone(n.Devices)
		for i := range n.Devices {
			n.Devices[i].Healthy = false
		}
	}
	return n
}
