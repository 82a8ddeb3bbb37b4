package kube

import (
	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Node is what the scheduler has to know of a node. It shares n's maps: neither is to be changed.
func Node(n *v1.Node) *scheduler.Node {
	return &scheduler.Node{Name: n.Name, Labels: n.Labels, Annotations: n.Annotations}
}
