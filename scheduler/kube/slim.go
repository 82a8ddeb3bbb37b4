package kube

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// NewInformers returns informers that keep only the fields that the scheduler reads and omit pods
// that ended.
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

// Slim is a cache.TransformFunc that keeps the fields of pods and nodes that the scheduler reads.
func Slim(object any) (any, error) {
	switch o := object.(type) {
	case *v1.Pod:
		return slimPod(o), nil
	case *v1.Node:
		return &v1.Node{ObjectMeta: slimMeta(&o.ObjectMeta)}, nil
	case metav1.Object:
		o.SetManagedFields(nil)
	}
	return object, nil
}

func slimPod(p *v1.Pod) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: slimMeta(&p.ObjectMeta),
		Spec: v1.PodSpec{
			NodeName:        p.Spec.NodeName,
			SchedulerName:   p.Spec.SchedulerName,
			Priority:        p.Spec.Priority,
			SchedulingGroup: p.Spec.SchedulingGroup,
			InitContainers:  slimContainers(p.Spec.InitContainers),
			Containers:      slimContainers(p.Spec.Containers),
		},
		Status: v1.PodStatus{Phase: p.Status.Phase, NominatedNodeName: p.Status.NominatedNodeName},
	}
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
		if isExtended(name) {
			if slim == nil {
				slim = make(v1.ResourceList, len(list))
			}
			slim[name] = quantity
		}
	}
	return slim
}
