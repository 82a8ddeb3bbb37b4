package cluster

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// Explanation is why a pod is where it is.
type Explanation struct {
	engine.Explanation
	// Scheduled is what kube-scheduler says, of its other reasons too (the pod's condition PodScheduled).
	Scheduled string `json:"scheduled,omitempty"`
}

// Explain asks a scheduler why the pod is where it is.
func (c *Cluster) Explain(ctx context.Context, namespace, name string) (Explanation, error) {
	var x Explanation
	pod, err := c.Pod(ctx, namespace, name)
	if err != nil {
		return x, err
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status != v1.ConditionTrue {
			x.Scheduled = condition.Message
		}
	}
	servers, _, err := c.servers(ctx, componentScheduler)
	if err != nil {
		return x, err
	}
	var failed error
	answered := false
	for i := range servers {
		var one engine.Explanation
		err := c.ask(ctx, &servers[i], portHTTP, "/debug/explain", map[string]string{"namespace": namespace, "pod": name}, &one)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("scheduler %s/%s: %w", servers[i].Namespace, servers[i].Name, err))
			continue
		}
		// Replicas know the same, but for what the one that leads has decided itself.
		if better := one.Choice != nil || one.State == engine.ExplainedReserved; !answered || better {
			x.Explanation = one
		}
		answered = true
	}
	if !answered {
		return x, failed
	}
	return x, nil
}
