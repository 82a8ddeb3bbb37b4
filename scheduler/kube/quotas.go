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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// QuotaSink is implemented by *engine.Engine.
type QuotaSink interface {
	SetQuota(namespace, name string, q quota.Quota)
	DeleteQuota(namespace, name string)
	SetGPUQuota(*quota.GPUs)
}

// Quotas passes ResourceQuotas for GPUs to the sink.
func (f *Feed) Quotas(factory informers.SharedInformerFactory, sink QuotaSink, o request.Options, log *slog.Logger) error {
	set := func(q *v1.ResourceQuota) {
		limits, err := quota.FromHard(hard(q), o)
		if err != nil {
			log.Error("invalid limits in ResourceQuota: allowing 0 for them", "namespace", q.Namespace, "quota", q.Name, "error", err)
		}
		if limits == quota.NoLimits {
			sink.DeleteQuota(q.Namespace, q.Name)
			return
		}
		sink.SetQuota(q.Namespace, q.Name, quota.Quota{Limits: limits, Scope: scope(q), Pool: q.Annotations[api.AnnotationQuotaPool]})
	}
	handler := Handler[*v1.ResourceQuota]{
		Set: set,
		Replaced: func(old, q *v1.ResourceQuota) {
			// Scopes are immutable.
			if old.Annotations[api.AnnotationQuotaPool] != q.Annotations[api.AnnotationQuotaPool] || !maps.EqualFunc(old.Spec.Hard, q.Spec.Hard, sameQuantity) {
				set(q)
			}
		},
		Gone: func(q *v1.ResourceQuota) { sink.DeleteQuota(q.Namespace, q.Name) },
	}
	if err := f.follow(factory.Core().V1().ResourceQuotas().Informer(), handler); err != nil {
		return fmt.Errorf("watch resource quotas: %w", err)
	}
	return nil
}

func scope(q *v1.ResourceQuota) (all quota.Scope) {
	for _, name := range q.Spec.Scopes {
		all = append(all, quota.Requirement{Name: string(name), Operator: quota.Exists})
	}
	if q.Spec.ScopeSelector != nil {
		for _, e := range q.Spec.ScopeSelector.MatchExpressions {
			all = append(all, quota.Requirement{Name: string(e.ScopeName), Operator: string(e.Operator), Values: e.Values})
		}
	}
	return all
}

func hard(q *v1.ResourceQuota) map[string]scheduler.Amount {
	amounts := make(map[string]scheduler.Amount, len(q.Spec.Hard))
	for name, quantity := range q.Spec.Hard {
		if convert.IsExtended(name) {
			amounts[string(name)] = convert.Amount(quantity)
		}
	}
	return amounts
}

// GPUQuota passes gpu-manager's quota to the sink. The caller starts the returned factory. If the
// ConfigMap is malformed, the last valid quota stays; without one, no pod gets GPUs.
func (f *Feed) GPUQuota(client kubernetes.Interface, namespace, name string, sink QuotaSink,
	log *slog.Logger) (informers.SharedInformerFactory, error) {
	valid := false
	apply := func(gpus *quota.GPUs) {
		valid = gpus != nil
		sink.SetGPUQuota(gpus)
	}
	set := func(c *v1.ConfigMap) {
		value, there := c.Data[quota.ConfigMapKey]
		if !there {
			apply(nil)
			return
		}
		gpus, err := quota.ParseGPUs(value)
		switch {
		case err == nil:
			apply(gpus)
		case valid:
			log.Error("invalid GPU quota: keeping the previous one", "namespace", namespace, "configmap", name, "error", err)
		default:
			log.Error("invalid GPU quota: no pod gets GPUs until it is fixed or removed", "namespace", namespace, "configmap", name, "error", err)
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
		Gone: func(*v1.ConfigMap) { apply(nil) },
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, time.Duration(0), informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
	if err := f.follow(factory.Core().V1().ConfigMaps().Informer(), handler); err != nil {
		return nil, fmt.Errorf("watch the GPU quota: %w", err)
	}
	return factory, nil
}
