package noderegister

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Condition is a condition of the node. Without a Status it is removed. At is when its status was found.
type Condition struct {
	Type, Status, Reason, Message string
	At                            time.Time
}

// writtenConditions are what was written to which Node object, by type.
type writtenConditions struct {
	node types.UID
	of   map[string]Condition
}

func (p *Publisher) writeConditions(ctx context.Context, node types.UID) error {
	if p.cfg.Conditions == nil {
		return nil
	}
	if p.conditions.node != node {
		p.conditions = writtenConditions{node, map[string]Condition{}}
	}
	var errs []error
	for _, now := range p.cfg.Conditions() {
		if was, written := p.conditions.of[now.Type]; written && was == now {
			continue
		}
		if err := p.writeCondition(ctx, now); err != nil {
			errs = append(errs, err)
			continue
		}
		p.conditions.of[now.Type] = now
	}
	return errors.Join(errs...)
}

func (p *Publisher) writeCondition(ctx context.Context, c Condition) error {
	if c.Status == "" {
		return RemoveCondition(ctx, p.cfg.Client, p.cfg.NodeName, c.Type)
	}
	fields := map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message}
	if !c.At.IsZero() {
		at := metav1.NewTime(c.At)
		fields["lastHeartbeatTime"], fields["lastTransitionTime"] = at, at
	}
	if err := patchConditions(ctx, p.cfg.Client, p.cfg.NodeName, fields); err != nil {
		return err
	}
	p.cfg.Log.Info("node condition updated", "node", p.cfg.NodeName, "condition", c.Type, "status", c.Status, "reason", c.Reason)
	return nil
}

// RemoveCondition removes a condition of the node.
func RemoveCondition(ctx context.Context, client Client, node, condition string) error {
	return patchConditions(ctx, client, node, map[string]any{"type": condition, "$patch": "delete"})
}

// patchConditions changes the one condition of that type: conditions are merged by their types.
func patchConditions(ctx context.Context, client Client, node string, fields map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{fields}}})
	if err != nil {
		return err
	}
	if err := client.PatchStatus(ctx, node, patch); err != nil {
		return fmt.Errorf("write the node's condition: %w", err)
	}
	return nil
}
