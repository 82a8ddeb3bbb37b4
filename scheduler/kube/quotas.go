package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// QuotaSink is what quotas are told to: *engine.Engine.
type QuotaSink interface {
	SetQuota(namespace, name string, l quota.Limits)
	DeleteQuota(namespace, name string)
	SetGPUQuota(*quota.GPUs)
}

// Quotas tells the sink of the namespaces' ResourceQuotas on memory and cores. Those with
// scopes are passed over: they are of some of a namespace's pods, and what is counted here
// is of all.
func (f *Feeding) Quotas(factory informers.SharedInformerFactory, sink QuotaSink, o request.Options, log *slog.Logger) error {
	set := func(q *v1.ResourceQuota) {
		limits, err := quota.FromHard(hard(q), o)
		if err != nil {
			log.Error("a resource quota can't be read in part: nothing may be had of that part", "namespace", q.Namespace, "quota", q.Name, "error", err)
		}
		if limits != quota.NoLimits && scoped(q) {
			log.Warn("a resource quota with scopes limits no GPUs: write one without", "namespace", q.Namespace, "quota", q.Name)
			limits = quota.NoLimits
		}
		if limits == quota.NoLimits {
			sink.DeleteQuota(q.Namespace, q.Name)
			return
		}
		sink.SetQuota(q.Namespace, q.Name, limits)
	}
	handler := Handler[*v1.ResourceQuota]{
		Set: set,
		Replaced: func(old, q *v1.ResourceQuota) {
			if scoped(old) != scoped(q) || !maps.EqualFunc(old.Spec.Hard, q.Spec.Hard, sameQuantity) {
				set(q)
			}
		},
		Gone: func(q *v1.ResourceQuota) { sink.DeleteQuota(q.Namespace, q.Name) },
	}
	if err := f.follow(factory.Core().V1().ResourceQuotas().Informer(), handler); err != nil {
		return fmt.Errorf("follow the cluster's resource quotas: %w", err)
	}
	return nil
}

func scoped(q *v1.ResourceQuota) bool { return len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil }

func hard(q *v1.ResourceQuota) map[string]scheduler.Amount {
	amounts := make(map[string]scheduler.Amount, len(q.Spec.Hard))
	for name, quantity := range q.Spec.Hard {
		if isExtended(name) {
			amounts[string(name)] = Amount(quantity)
		}
	}
	return amounts
}

// GPUQuota tells the sink of gpu-manager's quota in that ConfigMap. The factory that it
// returns watches this one object; it is the caller's to start. A ConfigMap that is
// malformed leaves the quota as it was; where none was read before it, nobody gets GPUs.
func (f *Feeding) GPUQuota(client kubernetes.Interface, namespace, name string, labels quota.Labels, sink QuotaSink, log *slog.Logger) (informers.SharedInformerFactory, error) {
	inForce := false // events come one after the other
	tell := func(gpus *quota.GPUs) {
		inForce = gpus != nil
		sink.SetGPUQuota(gpus)
	}
	set := func(c *v1.ConfigMap) {
		value, there := c.Data[quota.ConfigMapKey]
		if !there {
			tell(nil)
			return
		}
		gpus, err := quota.ParseGPUs(value, labels)
		switch {
		case err == nil:
			tell(gpus)
		case inForce:
			log.Error("the quota of GPUs was not taken over: the one before stays in force", "namespace", namespace, "configmap", name, "error", err)
		default:
			log.Error("the quota of GPUs can't be read: no pod gets GPUs until it is fixed or removed", "namespace", namespace, "configmap", name, "error", err)
			sink.SetGPUQuota(quota.Unreadable(err))
		}
	}
	handler := Handler[*v1.ConfigMap]{
		Set: set,
		Replaced: func(old, c *v1.ConfigMap) {
			if old.Data[quota.ConfigMapKey] != c.Data[quota.ConfigMapKey] {
				set(c)
			}
		},
		Gone: func(*v1.ConfigMap) { tell(nil) },
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, time.Duration(0), informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
	if err := f.follow(factory.Core().V1().ConfigMaps().Informer(), handler); err != nil {
		return nil, fmt.Errorf("follow the quota of GPUs: %w", err)
	}
	return factory, nil
}
