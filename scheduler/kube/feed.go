// Package kube connects Kubernetes with the scheduler's model: Pod and Node convert objects, Feed
// passes events to the engine, Bind binds pods, Resizer answers resize requests.
package kube

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
)

// Sink is implemented by *engine.Engine.
type Sink interface {
	SetNode(*scheduler.Node)
	DeleteNode(name string)
	SetPod(*scheduler.Pod)
	DeletePod(uid string)
}

// Feed passes nodes and pods from informers to a sink. It always passes the newest object of the
// informer, so Pod and Node can be called at any time.
type Feed struct {
	sink   Sink
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	synced []cache.InformerSynced

	mu sync.Mutex // from reading the object to the sink
}

// NewFeed registers with the factory's informers, started or not.
func NewFeed(factory informers.SharedInformerFactory, sink Sink) (*Feed, error) {
	nodes, pods := factory.Core().V1().Nodes(), factory.Core().V1().Pods()
	f := &Feed{sink: sink, nodes: nodes.Lister(), pods: pods.Lister()}
	if err := f.follow(nodes.Informer(), f.nodeHandler()); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	if err := f.follow(pods.Informer(), f.podHandler()); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return f, nil
}

func (f *Feed) follow(informer cache.SharedInformer, handler cache.ResourceEventHandler) error {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return err
	}
	f.synced = append(f.synced, registration.HasSynced)
	return nil
}

// Synced reports whether the initial objects have been passed on.
func (f *Feed) Synced() bool {
	for _, synced := range f.synced {
		if !synced() {
			return false
		}
	}
	return true
}

func (f *Feed) Wait(ctx context.Context) error {
	if f.Synced() || cache.WaitForCacheSync(ctx.Done(), f.synced...) {
		return nil
	}
	return fmt.Errorf("wait for the cluster's nodes and pods: %w", context.Cause(ctx))
}

// Node passes the current node to the sink.
func (f *Feed) Node(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch n, err := f.nodes.Get(name); {
	case err == nil:
		f.sink.SetNode(convert.Node(n))
	case apierrors.IsNotFound(err):
		f.sink.DeleteNode(name)
	}
}

// Pod passes the current pod of that name to the sink.
func (f *Feed) Pod(p *v1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := f.pods.Pods(p.Namespace).Get(p.Name)
	if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
		f.sink.DeletePod(string(p.UID))
	}
	if err == nil {
		f.sink.SetPod(trusted(convert.Pod(now)))
	}
}

// Find returns a NotFound error of the API server if there is no such pod.
func (f *Feed) Find(namespace, name string) (*scheduler.Pod, error) {
	p, err := f.pods.Pods(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return trusted(convert.Pod(p)), nil
}

// Objects returns all pods and nodes. Do not change them.
func (f *Feed) Objects() (pods []*v1.Pod, nodes []*v1.Node) {
	pods, _ = f.pods.List(labels.Everything()) // listers of caches return no errors
	nodes, _ = f.nodes.List(labels.Everything())
	return pods, nodes
}

// trusted removes the scheduler's annotations of a pod that is not bound: they are forged (see
// Bind).
func trusted(p *scheduler.Pod) *scheduler.Pod {
	if p.Node == "" {
		p.Annotations = Unowned(p.Annotations)
	}
	return p
}

// Unowned returns the annotations without those that only the scheduler may write.
func Unowned(annotations map[string]string) map[string]string {
	for key := range annotations {
		if api.IsOwned(key) {
			annotations = maps.Clone(annotations)
			maps.DeleteFunc(annotations, func(key, _ string) bool { return api.IsOwned(key) })
			break
		}
	}
	return annotations
}

func (f *Feed) nodeHandler() cache.ResourceEventHandler {
	return Handler[*v1.Node]{
		Set: func(n *v1.Node) { f.Node(n.Name) },
		Replaced: func(old, n *v1.Node) {
			if !SameNode(old, n) {
				f.Node(n.Name)
			}
		},
		Gone: func(n *v1.Node) { f.Node(n.Name) },
	}
}

func (f *Feed) podHandler() cache.ResourceEventHandler {
	return Handler[*v1.Pod]{
		Set: f.Pod,
		Replaced: func(old, p *v1.Pod) {
			if old.UID != p.UID { // the informer missed the deletion
				f.Pod(old)
			}
			if !samePod(old, p) {
				f.Pod(p)
			}
		},
		Gone: f.Pod,
	}
}

// SameNode compares what Node returns.
func SameNode(a, b *v1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// samePod compares what Pod returns. Containers and extended resources are immutable.
func samePod(a, b *v1.Pod) bool {
	return a.UID == b.UID && a.Spec.NodeName == b.Spec.NodeName && convert.Ended(a) == convert.Ended(b) && convert.ClassOf(a) == convert.ClassOf(b) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// Handler is a cache.ResourceEventHandler for one type. Fields may be nil.
type Handler[T any] struct {
	Set      func(T)
	Replaced func(old, object T)
	Gone     func(T)
}

// OnAdd implements cache.ResourceEventHandler.
func (h Handler[T]) OnAdd(object any, _ bool) {
	if o, ok := object.(T); ok && h.Set != nil {
		h.Set(o)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h Handler[T]) OnUpdate(before, object any) {
	old, hadOld := before.(T)
	o, ok := object.(T)
	if ok && hadOld && h.Replaced != nil {
		h.Replaced(old, o)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h Handler[T]) OnDelete(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if o, ok := object.(T); ok && h.Gone != nil {
		h.Gone(o)
	}
}

// NewInformers returns informers that keep only what the scheduler reads and omit pods that ended.
func NewInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(Slim))
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodFailed)),
	).String()
	pods := coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) { o.FieldSelector = running })
	_ = pods.SetTransform(Slim) // never: the informer is not started
	factory.InformerFor(&v1.Pod{}, func(_ kubernetes.Interface, _ time.Duration) cache.SharedIndexInformer { return pods })
	return factory
}

// Slim is a cache.TransformFunc that removes what the scheduler does not read.
func Slim(object any) (any, error) {
	switch o := object.(type) {
	case *v1.Pod:
		return slimPod(o), nil
	case *v1.Node:
		return &v1.Node{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: v1.NodeSpec{Unschedulable: o.Spec.Unschedulable, Taints: o.Spec.Taints}}, nil
	case metav1.Object:
		o.SetManagedFields(nil)
	}
	return object, nil
}

func slimPod(p *v1.Pod) *v1.Pod {
	meta := slimMeta(&p.ObjectMeta)
	if owner := metav1.GetControllerOf(p); owner != nil {
		meta.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return &v1.Pod{
		ObjectMeta: meta,
		Spec: v1.PodSpec{
			NodeName:         p.Spec.NodeName,
			SchedulerName:    p.Spec.SchedulerName,
			Priority:         p.Spec.Priority,
			PreemptionPolicy: p.Spec.PreemptionPolicy,
			SchedulingGroup:  p.Spec.SchedulingGroup,
			SchedulingGates:  p.Spec.SchedulingGates,
			// For class.
			PriorityClassName:     p.Spec.PriorityClassName,
			ActiveDeadlineSeconds: p.Spec.ActiveDeadlineSeconds,
			// For plans of defragmentation; pod affinity for class only.
			NodeSelector:   p.Spec.NodeSelector,
			Tolerations:    p.Spec.Tolerations,
			Affinity:       slimAffinity(p.Spec.Affinity),
			InitContainers: slimContainers(p.Spec.InitContainers),
			Containers:     slimContainers(p.Spec.Containers),
		},
		Status: v1.PodStatus{Phase: p.Status.Phase, NominatedNodeName: p.Status.NominatedNodeName, QOSClass: p.Status.QOSClass},
	}
}

func slimAffinity(a *v1.Affinity) *v1.Affinity {
	switch {
	case convert.CrossNamespace(a) != nil:
		return a
	case a == nil || a.NodeAffinity == nil:
		return nil
	}
	return &v1.Affinity{NodeAffinity: a.NodeAffinity}
}

func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		Labels: m.Labels, Annotations: m.Annotations,
	}
}

func slimContainers(all []v1.Container) []v1.Container {
	slim := make([]v1.Container, len(all))
	for i := range all {
		c := &all[i]
		slim[i] = v1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
			Resources: v1.ResourceRequirements{Limits: slimList(c.Resources.Limits), Requests: slimList(c.Resources.Requests)}}
	}
	return slim
}

func slimList(list v1.ResourceList) v1.ResourceList {
	var slim v1.ResourceList
	for name, quantity := range list {
		if convert.IsExtended(name) {
			if slim == nil {
				slim = make(v1.ResourceList, len(list))
			}
			slim[name] = quantity
		}
	}
	return slim
}

func sameQuantity(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }
