package kube

import (
	"context"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Sink is what the cluster's events are told to: *engine.Engine.
type Sink interface {
	SetNode(*scheduler.Node)
	DeleteNode(name string)
	SetPod(*scheduler.Pod)
	DeletePod(uid string)
}

// Feeding says whether the sink has been told of what there was at the start.
type Feeding struct {
	synced []cache.InformerSynced
}

// Feed tells the sink of nodes and pods, from informers that may be started before or
// after. An object that is set again as it was (a resync, a status that changed) is not
// told of again.
func Feed(factory informers.SharedInformerFactory, sink Sink) (*Feeding, error) {
	f := &Feeding{}
	if err := f.follow(factory.Core().V1().Nodes().Informer(), nodeHandler(sink)); err != nil {
		return nil, fmt.Errorf("follow the cluster's nodes: %w", err)
	}
	if err := f.follow(factory.Core().V1().Pods().Informer(), podHandler(sink)); err != nil {
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

func nodeHandler(sink Sink) cache.ResourceEventHandler {
	return handler[*v1.Node]{
		set: func(n *v1.Node) { sink.SetNode(Node(n)) },
		// A node of the same name takes the place of the one before.
		replaced: func(old, n *v1.Node) {
			if !maps.Equal(old.Labels, n.Labels) || !maps.Equal(old.Annotations, n.Annotations) {
				sink.SetNode(Node(n))
			}
		},
		gone: func(n *v1.Node) { sink.DeleteNode(n.Name) },
	}
}

func podHandler(sink Sink) cache.ResourceEventHandler {
	return handler[*v1.Pod]{
		set: func(p *v1.Pod) { sink.SetPod(Pod(p)) },
		replaced: func(old, p *v1.Pod) {
			if old.UID != p.UID { // its deletion was missed
				sink.DeletePod(string(old.UID))
			} else if samePod(old, p) {
				return
			}
			sink.SetPod(Pod(p))
		},
		gone: func(p *v1.Pod) { sink.DeletePod(string(p.UID)) },
	}
}

// samePod says that Pod makes the same of both. What a container may have of extended
// resources doesn't change while its pod lives, nor do its containers.
func samePod(a, b *v1.Pod) bool {
	return a.Spec.NodeName == b.Spec.NodeName && ended(a) == ended(b) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// handler calls by what happened to an object of one kind.
type handler[T any] struct {
	set      func(T)
	replaced func(old, object T)
	gone     func(T)
}

func (h handler[T]) OnAdd(object any, _ bool) {
	if o, ok := object.(T); ok {
		h.set(o)
	}
}

func (h handler[T]) OnUpdate(before, object any) {
	old, hadOld := before.(T)
	o, ok := object.(T)
	switch {
	case ok && hadOld:
		h.replaced(old, o)
	case ok:
		h.set(o)
	}
}

func (h handler[T]) OnDelete(object any) {
	// The deletion itself was missed: the informer gives the last that it knew.
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if o, ok := object.(T); ok {
		h.gone(o)
	}
}
