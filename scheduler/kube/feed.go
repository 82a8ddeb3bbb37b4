package kube

import (
	"context"
	"fmt"
	"maps"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// Sink is what the cluster's events are told to: *engine.Engine.
type Sink interface {
	SetNode(*scheduler.Node)
	DeleteNode(name string)
	SetPod(*scheduler.Pod)
	DeletePod(uid string)
}

// Feeding tells a sink of the cluster. An event says only what to look at: what is told is
// always the newest that the informer has, so that Pod and Node can be called at any time,
// from anywhere, and the sink never goes back.
type Feeding struct {
	sink   Sink
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	synced []cache.InformerSynced

	mu sync.Mutex // from looking to telling
}

// Feed tells the sink of nodes and pods, from informers that may be started before or
// after. An object that is set again as it was (a resync, a status that changed) is not
// told of again.
func Feed(factory informers.SharedInformerFactory, sink Sink) (*Feeding, error) {
	nodes, pods := factory.Core().V1().Nodes(), factory.Core().V1().Pods()
	f := &Feeding{sink: sink, nodes: nodes.Lister(), pods: pods.Lister()}
	if err := f.follow(nodes.Informer(), f.nodeHandler()); err != nil {
		return nil, fmt.Errorf("follow the cluster's nodes: %w", err)
	}
	if err := f.follow(pods.Informer(), f.podHandler()); err != nil {
		return nil, fmt.Errorf("follow the cluster's pods: %w", err)
	}
	return f, nil
}

func (f *Feeding) follow(informer cache.SharedInformer, handler cache.ResourceEventHandler) error {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return err
	}
	f.synced = append(f.synced, registration.HasSynced)
	return nil
}

// Synced says whether all that there was at the start has been told.
func (f *Feeding) Synced() bool {
	for _, synced := range f.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// Wait returns once Synced, or with the context's error.
func (f *Feeding) Wait(ctx context.Context) error {
	if f.Synced() || cache.WaitForCacheSync(ctx.Done(), f.synced...) {
		return nil
	}
	return fmt.Errorf("wait for the cluster's nodes and pods: %w", context.Cause(ctx))
}

// Node tells the sink of the node as it is now.
func (f *Feeding) Node(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch n, err := f.nodes.Get(name); {
	case err == nil:
		f.sink.SetNode(Node(n))
	case apierrors.IsNotFound(err):
		f.sink.DeleteNode(name)
	}
}

// Pod tells the sink of the pod as it is now. Another pod that has its name by now is told
// of too.
//
// Of a pod that isn't bound, what only the scheduler may write is left out: its grant is
// written in the transaction that binds it (Bind), so that whatever is there before is from
// somebody else.
func (f *Feeding) Pod(p *v1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := f.pods.Pods(p.Namespace).Get(p.Name)
	if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
		f.sink.DeletePod(string(p.UID))
	}
	if err == nil {
		f.sink.SetPod(believed(Pod(now)))
	}
}

// Find is the pod of that name as it is now. It is a NotFound error of the API server's if
// there is none.
func (f *Feeding) Find(namespace, name string) (*scheduler.Pod, error) {
	p, err := f.pods.Pods(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return believed(Pod(p)), nil
}

func believed(p *scheduler.Pod) *scheduler.Pod {
	if p.Node == "" {
		p.Annotations = Unowned(p.Annotations)
	}
	return p
}

// Unowned are the annotations without those that only the scheduler may write.
func Unowned(annotations map[string]string) map[string]string {
	for key := range annotations {
		if wire.IsOwned(key) {
			annotations = maps.Clone(annotations)
			maps.DeleteFunc(annotations, func(key, _ string) bool { return wire.IsOwned(key) })
			break
		}
	}
	return annotations
}

func (f *Feeding) nodeHandler() cache.ResourceEventHandler {
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

func (f *Feeding) podHandler() cache.ResourceEventHandler {
	return Handler[*v1.Pod]{
		Set: f.Pod,
		Replaced: func(old, p *v1.Pod) {
			if old.UID != p.UID { // its deletion was missed
				f.Pod(old)
			}
			if !samePod(old, p) {
				f.Pod(p)
			}
		},
		Gone: f.Pod,
	}
}

// SameNode says that Node makes the same of both.
func SameNode(a, b *v1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// samePod says that Pod makes the same of both. What a container may have of extended
// resources doesn't change while its pod lives, nor do its containers.
func samePod(a, b *v1.Pod) bool {
	return a.UID == b.UID && a.Spec.NodeName == b.Spec.NodeName && ended(a) == ended(b) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}
