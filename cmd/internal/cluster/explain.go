package cluster

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// Explanation is the scheduler's explanation of a pod's state.
type Explanation struct {
	engine.Explanation
	// Scheduled is the message of the pod's condition PodScheduled, by kube-scheduler.
	Scheduled string `json:"scheduled,omitempty"`
}

// Explain requests the explanation of a pod from the schedulers.
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
		err := c.request(ctx, &servers[i], portHTTP, "/debug/explain", map[string]string{"namespace": namespace, "pod": name}, &one)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("scheduler %s/%s: %w", servers[i].Namespace, servers[i].Name, err))
			continue
		}
		// Only the leading replica has its own decisions.
		if better := one.Choice != nil || one.State == engine.ExplainedReserved; !answered || better {
			x.Explanation = one
		}
		answered = true
	}
	if answered {
		failed = nil
	}
	return x, failed
}
