package plugin

import (
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// PreFilter names the nodes that kube-scheduler considers. It walks the names in random order and judges each by all
// plugins, so for most pods only the best nodes by GPUs are named: a narrow cycle. If other plugins refuse all of them,
// the pod is tried again with all nodes with GPUs; only that cycle may evict pods.

// bestNodes is how many nodes a narrow cycle has: other plugins choose among nodes with equal GPUs, and refuse some.
const bestNodes = 32

// named returns the nodes for the pod; nil: all of the cluster.
func (p *Plugin) named(c *cycle, object *v1.Pod) sets.Set[string] {
	all := p.gpuNodes.names(c.evaluation.Snapshot())
	switch {
	case len(all) == 0:
		return nil
	case len(all) <= bestNodes, object.Status.NominatedNodeName != "", p.secondTries.has(object),
		object.Spec.SchedulingGroup != nil: // a group is tried as one: second tries of its pods would add up
		return all
	}
	a := p.informerSync.accepts(object)
	best := func(n int, is ...func(node string) bool) []string {
		return c.evaluation.Best(n, func(node string) bool {
			return !slices.ContainsFunc(is, func(is func(string) bool) bool { return !is(node) }) && a.fits(node)
		})
	}
	names := sets.New[string]()
	if kube.OthersJudge(object) {
		names.Insert(best(len(all))...)
	} else {
		names.Insert(best(bestNodes)...)
		if a.imagesDiffer {
			names.Insert(best(bestNodes, a.hasImage)...)
		}
		if a.preferred != nil {
			most := int64(0)
			best(1, func(node string) bool {
				if a.fits(node) {
					most = max(most, a.preference(node))
				}
				return false
			})
			names.Insert(best(bestNodes, func(node string) bool { return a.preference(node) == most })...)
		}
	}
	if len(names) == 0 {
		return all
	}
	c.narrow = true
	return names
}

// acceptance foresees what kube-scheduler's own plugins decide, so that second tries are rare. It need not be right.
type acceptance struct {
	nodes     map[string]*seenNode
	pod       *v1.Pod
	required  nodeaffinity.RequiredNodeAffinity
	preferred *nodeaffinity.PreferredSchedulingTerms // nil: none
	requests  v1.ResourceList
	// imagesDiffer: some of the nodes have images of the pod, and some have not.
	imagesDiffer bool
}

// accepts is for this cycle only.
func (s *informerSync) accepts(pod *v1.Pod) *acceptance {
	a := &acceptance{nodes: s.nodes, pod: pod, required: nodeaffinity.GetRequiredNodeAffinity(pod),
		requests: resource.PodRequests(pod, resource.PodResourcesOptions{})}
	eachImage(pod, func(name string) {
		n := s.images[name]
		a.imagesDiffer = a.imagesDiffer || n > 0 && n < len(s.order)
	})
	if rules := pod.Spec.Affinity; rules != nil && rules.NodeAffinity != nil {
		if terms := rules.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
			a.preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(terms) // NodeAffinity reports the error
		}
	}
	return a
}

// preference is what the pod's preferred node affinity gives the node.
func (a *acceptance) preference(name string) int64 {
	if seen := a.nodes[name]; seen != nil {
		return a.preferred.Score(seen.node)
	}
	return 0
}

// fits avoids nodes with untolerated PreferNoSchedule taints too.
func (a *acceptance) fits(name string) bool {
	seen := a.nodes[name]
	if seen == nil || seen.node.Spec.Unschedulable {
		return false
	}
	if match, err := a.required.Match(seen.node); err != nil || !match {
		return false
	}
	if _, untolerated := findTaint(seen.node, a.pod, allEffects); untolerated {
		return false
	}
	room, used := seen.info.GetAllocatable(), seen.info.GetRequested()
	cpu, memory, storage := a.requests[v1.ResourceCPU], a.requests[v1.ResourceMemory], a.requests[v1.ResourceEphemeralStorage]
	return len(seen.info.GetPods()) < room.GetAllowedPodNumber() &&
		enough(cpu.MilliValue(), room.GetMilliCPU()-used.GetMilliCPU()) &&
		enough(memory.Value(), room.GetMemory()-used.GetMemory()) &&
		enough(storage.Value(), room.GetEphemeralStorage()-used.GetEphemeralStorage())
}

func enough(requested, free int64) bool { return requested == 0 || requested <= free }

// hasImage reports whether the node has images of the pod.
func (a *acceptance) hasImage(name string) bool {
	seen := a.nodes[name]
	return seen != nil && imageBytes(seen.info, a.pod) > 0
}

func allEffects(*v1.Taint) bool { return true }

func soft(t *v1.Taint) bool { return t.Effect == v1.TaintEffectPreferNoSchedule }

func findTaint(node *v1.Node, pod *v1.Pod, effects func(*v1.Taint) bool) (v1.Taint, bool) {
	if len(node.Spec.Taints) == 0 {
		return v1.Taint{}, false
	}
	return corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, effects, true)
}

// leastImage is what ImageLocality counts at least (1.36).
const leastImage = 23 << 20

// imageBytes is the size of the pod's images on the node; 0 if it would make no difference.
func imageBytes(info fwk.NodeInfo, pod *v1.Pod) (sum int64) {
	states := info.GetImageStates()
	if len(states) == 0 {
		return 0
	}
	eachImage(pod, func(name string) {
		if state := states[name]; state != nil {
			sum += state.Size
		}
	})
	if sum < leastImage {
		return 0
	}
	return sum
}

// eachImage passes the names that nodes have for the pod's images.
func eachImage(pod *v1.Pod, do func(name string)) {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			name := containers[i].Image
			if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
				name += ":latest"
			}
			do(name)
		}
	}
}

// preferences reports whether something but GPUs makes some of the nodes better for the pod.
func preferences(pod *v1.Pod, nodes []fwk.NodeInfo) bool {
	if kube.Prefers(pod) {
		return true
	}
	images := !spreadByDefault(pod)
	var first int64
	for i, info := range nodes {
		if _, untolerated := findTaint(info.Node(), pod, soft); untolerated {
			return true
		}
		if !images {
			continue
		}
		bytes := imageBytes(info, pod)
		if i == 0 {
			first = bytes
		}
		if bytes != first {
			return true
		}
	}
	return false
}

// spreadByDefault: kube-scheduler spreads the pods of these controllers although they don't ask for it. The GPU policy
// goes before that, so it goes before images too.
func spreadByDefault(pod *v1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && slices.Contains([]string{"ReplicaSet", "StatefulSet", "ReplicationController"}, owner.Kind)
}

// secondTries are the pods that found no node in a narrow cycle.
type secondTries struct {
	mu   sync.Mutex
	pods map[types.UID]struct{}
}

func newSecondTries() *secondTries { return &secondTries{pods: map[types.UID]struct{}{}} }

func (s *secondTries) has(pod *v1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pods[pod.UID]
	return ok
}

func (s *secondTries) add(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[pod.UID] = struct{}{}
}

func (s *secondTries) remove(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, pod.UID)
}
