package plugin

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/gang"
)

// domain is the part of the cluster for a group's pods.
type domain struct {
	*engine.Domain
	group    gang.Name
	required bool
}

// domainOf returns the domain for the pod's group; nil: any node. An error is for a group that requires one.
func (p *Plugin) domainOf(object *v1.Pod, s *engine.Snapshot) (*domain, error) {
	now := p.groups.of(object)
	if now == nil {
		return nil, nil
	}
	pods := members(now)
	if label := now.Topology(); label != "" {
		if d := p.engine.Domain(s, label, pods, nil); d != nil {
			return &domain{d, now.Name, true}, nil
		}
		return nil, fmt.Errorf("group %s: no value of the node label %s has nodes on which all of its %d pods fit", now.Name, label, len(pods))
	}
	if p.groups.goesAnywhere(now.Name) {
		return nil, nil
	}
	for _, label := range p.args.GroupTopology {
		if d := p.engine.Domain(s, label, pods, nil); d != nil {
			return &domain{d, now.Name, false}, nil
		}
	}
	return nil, nil
}

func members(g *gang.Group) []*scheduler.Pod {
	pods := make([]*scheduler.Pod, len(g.Pods))
	for i, object := range g.Pods {
		pods[i] = convert.Pod(object)
	}
	return pods
}

func (g *groups) goesAnywhere(name gang.Name) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.anywhere[name]
}

// leave makes the next cycles of a group use all nodes, if the pod failed in a domain that was only preferred: other
// plugins can refuse its nodes.
func (g *groups) leave(d *domain) bool {
	if d == nil || d.required {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.anywhere[d.group] = true
	return true
}

// noDomain refuses the pod of a group without room in one domain that it requires. No preemption follows: one pod's node does not
// make room for the group.
func noDomain(err error) *fwk.Status {
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
}
