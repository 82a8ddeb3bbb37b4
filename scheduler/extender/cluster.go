package extender

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/gang/podgroups"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// Cluster reads pods and PodDisruptionBudgets from caches.
type Cluster struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	index  cache.Indexer
	nodes  cache.Indexer
	pdbs   policylisters.PodDisruptionBudgetLister
	// minimums are set before the first call.
	minimums gang.Minimums
}

// NewCluster returns a Cluster with caches of the factory, which must not be started yet.
func NewCluster(client kubernetes.Interface, factory informers.SharedInformerFactory) (*Cluster, error) {
	pods, nodes, pdbs := factory.Core().V1().Pods(), factory.Core().V1().Nodes(), factory.Policy().V1().PodDisruptionBudgets()
	if err := pods.Informer().AddIndexers(cache.Indexers{nominatedIndex: indexNominated}); err != nil {
		return nil, fmt.Errorf("index pods by nominated node: %w", err)
	}
	if err := pods.Informer().AddIndexers(gang.Indexers); err != nil {
		return nil, fmt.Errorf("index pods by group: %w", err)
	}
	if err := nodes.Informer().AddIndexers(cache.Indexers{avoidedIndex: indexAvoided}); err != nil {
		return nil, fmt.Errorf("index nodes by taints: %w", err)
	}
	return &Cluster{client, pods.Lister(), pods.Informer().GetIndexer(), nodes.Informer().GetIndexer(), pdbs.Lister(),
		podgroups.New(nil, nil, nil, nil)}, nil
}

// avoidedIndex is the name and the only key of an index: nodes with PreferNoSchedule taints.
const avoidedIndex = "avoided"

func indexAvoided(object any) ([]string, error) {
	if n, ok := object.(*v1.Node); ok && slices.ContainsFunc(n.Spec.Taints, isSoft) {
		return []string{avoidedIndex}, nil
	}
	return nil, nil
}

func isSoft(t v1.Taint) bool { return t.Effect == v1.TaintEffectPreferNoSchedule }

// avoids reports whether nodes have PreferNoSchedule taints that the pod does not tolerate.
func (c *Cluster) avoids(pod *v1.Pod) bool {
	objects, _ := c.nodes.ByIndex(avoidedIndex, avoidedIndex) // the index exists
	return slices.ContainsFunc(objects, func(object any) bool {
		n, ok := object.(*v1.Node)
		if !ok {
			return false
		}
		_, avoided := corev1.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, pod.Spec.Tolerations,
			func(t *v1.Taint) bool { return isSoft(*t) }, true)
		return avoided
	})
}

// nominatedIndex is the name and the only key of an index: pending pods with a nominated node.
const nominatedIndex = "gpuslice.io/nominated"

func indexNominated(object any) ([]string, error) {
	if p, ok := object.(*v1.Pod); ok && p.Spec.NodeName == "" && p.Status.NominatedNodeName != "" && p.DeletionTimestamp == nil {
		return []string{nominatedIndex}, nil
	}
	return nil, nil
}

// nominated returns the pending pods by nominated node.
func (c *Cluster) nominated() map[string][]*v1.Pod {
	objects, _ := c.index.ByIndex(nominatedIndex, nominatedIndex) // the index exists
	all := map[string][]*v1.Pod{}
	for _, object := range objects {
		if p, ok := object.(*v1.Pod); ok {
			all[p.Status.NominatedNodeName] = append(all[p.Status.NominatedNodeName], p)
		}
	}
	for _, pods := range all {
		slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	}
	return all
}

func (c *Cluster) budgets() []*policyv1.PodDisruptionBudget {
	budgets, _ := c.pdbs.List(labels.Everything()) // listers of caches return no errors
	return budgets
}

// pod reads the API server if the cache lacks the pod. It returns a NotFound error of the API server if there is no
// pod of that UID.
func (c *Cluster) pod(ctx context.Context, namespace, name string, uid types.UID) (*v1.Pod, error) {
	if p, err := c.pods.Pods(namespace).Get(name); err == nil && p.UID == uid {
		return p, nil
	}
	p, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if p.UID != uid {
		return nil, apierrors.NewNotFound(v1.Resource("pods"), fmt.Sprintf("%s with UID %s", name, uid))
	}
	return p, nil
}

// group returns nil for a pod without a group.
func (c *Cluster) group(pod *v1.Pod) *gang.Group {
	name, ok := gang.Of(pod)
	if !ok {
		return nil
	}
	pods := gang.Pods(c.index, name)
	if !slices.ContainsFunc(pods, func(p *v1.Pod) bool { return p.UID == pod.UID }) {
		pods = append(pods, pod)
	}
	return gang.New(name, pods, c.minimums)
}

// lower returns the pods of lower priority by node, highest priority and oldest first.
func (c *Cluster) lower(priority int32) map[string][]*v1.Pod {
	pods, _ := c.pods.List(labels.Everything())
	below := map[string][]*v1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName != "" && priorityOf(p) < priority {
			below[p.Spec.NodeName] = append(below[p.Spec.NodeName], p)
		}
	}
	for _, pods := range below {
		slices.SortFunc(pods, func(a, b *v1.Pod) int {
			return cmp.Or(cmp.Compare(priorityOf(b), priorityOf(a)),
				a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
		})
	}
	return below
}

func priorityOf(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

const (
	// lag is how far this process's caches can be behind those of kube-scheduler.
	lag    = 2 * time.Second
	queued = 1000
)

// requeuer makes kube-scheduler retry pods that were rejected shortly before GPUs became free: kube-scheduler
// may receive an event before this process does. A change of the pod is an event.
type requeuer struct {
	clock func() time.Time

	mu       sync.Mutex
	rejected map[types.UID]rejection
	queue    chan *v1.Pod
}

type rejection struct {
	pod *v1.Pod
	at  time.Time
}

func newRequeuer(clock func() time.Time) *requeuer {
	return &requeuer{clock: clock, rejected: map[types.UID]rejection{}, queue: make(chan *v1.Pod, queued)}
}

func (r *requeuer) add(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	for uid, old := range r.rejected {
		if now.Sub(old.at) > lag {
			delete(r.rejected, uid)
		}
	}
	r.rejected[pod.UID] = rejection{pod, now}
}

func (r *requeuer) remove(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.rejected, uid)
}

// freed requeues the recently rejected pods.
func (r *requeuer) freed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	for uid, old := range r.rejected {
		delete(r.rejected, uid)
		if now.Sub(old.at) <= lag {
			r.enqueue(old.pod)
		}
	}
}

// enqueue drops the pod if the queue is full: then the next event comes soon.
func (r *requeuer) enqueue(pod *v1.Pod) {
	select {
	case r.queue <- pod:
	default:
	}
}

func (r *requeuer) run(ctx context.Context, requeue func(context.Context, *v1.Pod)) {
	for {
		select {
		case <-ctx.Done():
			return
		case pod := <-r.queue:
			requeue(ctx, pod)
		}
	}
}

func (s *Server) Sink() Sink { return Sink{s.Engine, s.requeuer, s.tries} }

// Sink passes events to the engine and requeues pods when GPUs become free.
type Sink struct {
	*engine.Engine
	requeuer *requeuer
	tries    *tries
}

func (s Sink) SetNode(n *scheduler.Node) {
	s.Engine.SetNode(n)
	s.requeuer.freed()
}

// SetPod implements kube.Sink.
func (s Sink) SetPod(p *scheduler.Pod) {
	if p.Ended || p.Node != "" {
		s.tries.remove(p.UID)
	}
	frees := p.Ended && s.AllocatedNode(p.UID) != ""
	kube.SetPod(s.Engine, p, s.requeuer.enqueue)
	if frees {
		s.requeuer.freed()
	}
}

func (s Sink) DeletePod(uid string) {
	s.tries.remove(uid)
	frees := s.AllocatedNode(uid) != ""
	s.Engine.DeletePod(uid)
	if frees {
		s.requeuer.freed()
	}
}
