package engine

import (
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// Exists reports whether the cluster has the node.
func (v *Evaluation) Exists(name string) bool {
	n := v.snapshot.node(name)
	return n != nil && n.registered
}

// Template is the verdict on a node that does not exist yet, with no pods on it.
func (e *Engine) Template(v *Evaluation, object *scheduler.Node) Verdict {
	if v.err != nil {
		return v.Verdict(object.Name)
	}
	var inventory scheduler.Inventory
	var err error
	if e.selects(object) {
		inventory, err = wire.DecodeTemplate(object)
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	n := (&node{name: object.Name, gpus: noGPUs}).asRegistered(object, inventory, problem)
	f := v.fitter()
	defer f.release()
	out := f.fit(n)
	return v.verdict(object.Name, n, &out, v.quotas)
}
