package noderegister

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Condition is a condition of the node. At is when its status was found.
type Condition struct {
	Type, Status, Reason, Message string
	At                            time.Time
}

// writtenCondition is what was written to which Node object.
type writtenCondition struct {
	node types.UID
	of   Condition
}

func (p *Publisher) writeCondition(ctx context.Context, node types.UID) error {
	if p.cfg.Condition == nil {
		return nil
	}
	now := writtenCondition{node, p.cfg.Condition()}
	if now == p.condition {
		return nil
	}
	fields := map[string]any{"type": now.of.Type, "status": now.of.Status, "reason": now.of.Reason, "message": now.of.Message}
	if !now.of.At.IsZero() {
		at := metav1.NewTime(now.of.At)
		fields["lastHeartbeatTime"], fields["lastTransitionTime"] = at, at
	}
	if err := patchConditions(ctx, p.cfg.Client, p.cfg.NodeName, fields); err != nil {
		return err
	}
	p.condition = now
	p.cfg.Log.Info("node condition updated", "node", p.cfg.NodeName, "condition", now.of.Type, "status", now.of.Status, "reason", now.of.Reason)
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
