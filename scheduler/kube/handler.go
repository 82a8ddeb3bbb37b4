package kube

import "k8s.io/client-go/tools/cache"

// Handler is a cache.ResourceEventHandler for one kind of object. Fields may be nil.
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
