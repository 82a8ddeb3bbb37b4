package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// reclaim evicts pods so that the quotas allow the pod, and returns the node for it; "" if none helps. DefaultPreemption
// evicts pods of one node only, and none of a namespace that borrows.
func (p *Plugin) reclaim(ctx context.Context, object *v1.Pod, c *cycle) (node string) {
	if !kube.MayPreempt(object) || p.groups.of(object) != nil || p.evictor.Waits(object.UID) {
		return ""
	}
	node, victims := p.engine.Reclaim(p.engine.Snapshot(), c.pod, c.request, p.evictable())
	if len(victims) == 0 || p.evictor.Evict(ctx, object, victims) == 0 {
		return ""
	}
	return node
}

// evictable excludes pods that a budget protects, and pods that end already.
func (p *Plugin) evictable() func(engine.Victim) bool {
	pods, _ := p.pods.List(labels.Everything()) // listers of caches return no errors
	budgets, _ := p.budgets.List(labels.Everything())
	free := kube.Evictable(pods, budgets)
	return func(v engine.Victim) bool { return free[v.UID] && !p.evictor.Leaving(v.UID) }
}
