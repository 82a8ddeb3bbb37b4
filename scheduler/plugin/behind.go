package plugin

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// behind brings the engine up to what kube-scheduler knows. Both follow the same informers,
// each at its own pace: a pod that kube-scheduler tries again because another one is gone
// must not be judged by an engine that has not heard of it yet, for nobody would try it a
// second time.
type behind struct {
	feeding *kube.Feeding

	mu    sync.Mutex // cycles are one at a time; this is for what nobody promises
	nodes map[string]*seen
	order []*seen // as the nodes came the last time, which is how they come the next time
}

// seen is a node as it was in the last cycle.
type seen struct {
	name       string
	generation int64
	node       *v1.Node
	pods       map[types.UID]*v1.Pod
}

func newBehind(f *kube.Feeding) *behind { return &behind{feeding: f, nodes: map[string]*seen{}} }

// catchUp tells the engine of what is gone or has changed since the last cycle. It costs a
// comparison a node, and the pods of those nodes that have changed.
func (b *behind) catchUp(nodes []fwk.NodeInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	order := b.order[:0:len(b.order)]
	for i, info := range nodes {
		node := info.Node()
		if node == nil { // it is gone, and pods are left on it
			continue
		}
		last := b.last(i, node.Name)
		if last == nil || last.generation != info.GetGeneration() {
			last = b.changed(last, info)
			b.nodes[node.Name] = last
		}
		order = append(order, last)
	}
	b.order = order
	if len(b.nodes) > len(order) {
		clear(b.nodes)
		for _, s := range order {
			b.nodes[s.name] = s
		}
	}
}

// reserved says that the pod is on the node from now on. Should it be gone before the next cycle, that
// one knows what it has to tell.
func (b *behind) reserved(node string, pod *v1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.nodes[node]; s != nil {
		s.pods[pod.UID] = pod
	}
}

// last is the node in the last cycle, or nil; i is where it is now.
func (b *behind) last(i int, name string) *seen {
	if i < len(b.order) && b.order[i].name == name {
		return b.order[i]
	}
	return b.nodes[name]
}

// changed is the node as it is now, after the engine was told.
func (b *behind) changed(last *seen, info fwk.NodeInfo) *seen {
	node := info.Node()
	now := &seen{name: node.Name, generation: info.GetGeneration(), node: node, pods: make(map[types.UID]*v1.Pod, len(info.GetPods()))}
	for _, pi := range info.GetPods() {
		now.pods[pi.GetPod().UID] = pi.GetPod()
	}
	if last == nil || last.node != node && !kube.SameNode(last.node, node) {
		b.feeding.Node(node.Name)
	}
	if last != nil {
		for uid, pod := range last.pods {
			if _, there := now.pods[uid]; !there {
				b.feeding.Pod(pod)
			}
		}
	}
	return now
}
