package plugin

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// informerSync updates the engine to the state of kube-scheduler's snapshot. Both use the same
// informers, each at its own pace: if kube-scheduler retries a pod after a deletion that the
// engine has not received, the pod would be rejected and not retried again.
type informerSync struct {
	feed *kube.Feed

	mu    sync.Mutex
	nodes map[string]*seenNode
	order []*seenNode // of the last cycle; usually the same in the next one
}

// seenNode is a node as it was in the last cycle.
type seenNode struct {
	name       string
	generation int64
	node       *v1.Node
	pods       map[types.UID]*v1.Pod
}

func newInformerSync(f *kube.Feed) *informerSync {
	return &informerSync{feed: f, nodes: map[string]*seenNode{}}
}

// update passes nodes and pods that changed or disappeared since the last cycle to the engine. It
// compares one generation per node, and the pods of changed nodes.
func (s *informerSync) update(nodes []fwk.NodeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := s.order[:0:len(s.order)]
	for i, info := range nodes {
		node := info.Node()
		if node == nil { // deleted, but it still has pods
			continue
		}
		last := s.nodes[node.Name]
		if i < len(s.order) && s.order[i].name == node.Name {
			last = s.order[i]
		}
		if last == nil || last.generation != info.GetGeneration() {
			last = s.updateNode(last, info)
			s.nodes[node.Name] = last
		}
		order = append(order, last)
	}
	s.order = order
	if len(s.nodes) > len(order) {
		clear(s.nodes)
		for _, n := range order {
			s.nodes[n.name] = n
		}
	}
}

// reserved adds the pod to the node, so that its deletion before the next cycle is noticed.
func (s *informerSync) reserved(node string, pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		n.pods[pod.UID] = pod
	}
}

func (s *informerSync) updateNode(last *seenNode, info fwk.NodeInfo) *seenNode {
	node := info.Node()
	now := &seenNode{name: node.Name, generation: info.GetGeneration(), node: node, pods: make(map[types.UID]*v1.Pod, len(info.GetPods()))}
	for _, pi := range info.GetPods() {
		now.pods[pi.GetPod().UID] = pi.GetPod()
	}
	if last == nil || last.node != node && !kube.SameNode(last.node, node) {
		s.feed.Node(node.Name)
	}
	if last != nil {
		for uid, pod := range last.pods {
			if _, there := now.pods[uid]; !there {
				s.feed.Pod(pod)
			}
		}
	}
	return now
}
