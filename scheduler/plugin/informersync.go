package plugin

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// informerSync updates the engine to kube-scheduler's snapshot: both use the same informers at different pace,
// and a pod that is retried before the engine receives a deletion would be rejected for good.
type informerSync struct {
	feed *kube.Feed

	mu    sync.Mutex
	nodes map[string]*seenNode
	order []*seenNode // usually the same in the next cycle
}

type seenNode struct {
	name       string
	generation int64
	node       *v1.Node
	pods       map[types.UID]*v1.Pod
}

func newInformerSync(f *kube.Feed) *informerSync {
	return &informerSync{feed: f, nodes: map[string]*seenNode{}}
}

// update costs a comparison per node, and the pods of changed nodes.
func (s *informerSync) update(nodes []fwk.NodeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := s.order[:0:len(s.order)]
	for i, info := range nodes {
		node := info.Node()
		if node == nil { // deleted, with pods left
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

// reserved makes the next update notice if the pod is gone.
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
