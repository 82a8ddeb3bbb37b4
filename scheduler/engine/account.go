package engine

import (
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

func (e *Engine) SetQuota(namespace, name string, q quota.Quota) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quotas.SetQuota(namespace, name, q)
}

func (e *Engine) DeleteQuota(namespace, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quotas.DropQuota(namespace, name)
}

func (e *Engine) Quotas() []*quota.Account {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.quotas.Limited()
}

// SetGPUQuota sets gpu-manager's quota; nil: none.
func (e *Engine) SetGPUQuota(gpus *quota.GPUs) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quotas.SetGPUs(gpus)
}

func quotaCharge(h *allocation, n *node) quota.Charge {
	charge := quota.Of(h.kinds, h.placement.Containers, n.labels[api.LabelTencentModel], func(uuid string) int64 {
		if i, ok := n.gpus.position[uuid]; ok {
			return n.gpus.total[i].MemoryMiB
		}
		return 0
	})
	charge.Class = h.class
	return charge
}

// recharge updates the charges after the node's labels or GPUs changed.
func (c change) recharge(n *node) {
	n.pods = slices.Clone(n.pods)
	for i, h := range n.pods {
		if charge := quotaCharge(h, n); charge != h.charge {
			changed := *h
			changed.charge = charge
			n.pods[i] = &changed
			c.e.quotas.Charge(h.namespace, h.uid, charge)
		}
	}
}

// quotaLimits excludes the pod's own allocation; nil: no limits. The caller holds mu.
func (e *Engine) quotaLimits(object *scheduler.Pod, r *request.Request) *quotaLimits {
	account := e.quotas.Account(object.Namespace)
	if !account.Limited() {
		return nil
	}
	if _, h := e.current(object.UID); h != nil {
		account = account.Minus(h.charge)
	}
	least := quota.Requested(r, "", 0)
	least.Class = object.Class
	return &quotaLimits{account, least}
}

type quotaLimits struct {
	account *quota.Account
	least   quota.Charge // the least charge on any node
}

// check returns why the quotas reject the pod; o is the outcome without quotas.
func (l *quotaLimits) check(n *node, o *outcome) error {
	if err := l.account.Check(l.least); err != nil || !o.fits {
		return err
	}
	charge := quota.Charge{MemoryMiB: o.memoryMiB, Cores: int64(o.cores), GPUPercent: int64(o.gpuPercent),
		Model: n.labels[api.LabelTencentModel], Class: l.least.Class}
	if err := l.account.Check(charge); err != nil {
		return err
	}
	return l.account.CheckNode(n.labels, charge)
}

// withQuotaExceeded replaces the reasons checked after the quota; ok is false if there are none.
func (o *outcome) withQuotaExceeded(n *node) (_ *outcome, ok bool) {
	next := *o
	c := &next.counts
	if o.fits {
		c[ResourceQuotaNotFit] = uint16(len(n.gpus.total))
	} else {
		c[ResourceQuotaNotFit] = c[CardInsufficientMemory] + c[CardInsufficientCore] + c[CardComputeUnitsExhausted]
		c[CardInsufficientMemory], c[CardInsufficientCore], c[CardComputeUnitsExhausted] = 0, 0, 0
	}
	next.fits = false
	return &next, c[ResourceQuotaNotFit] > 0
}

type quotaChange struct {
	uid, namespace string
	charge         quota.Charge
	added          bool
}

// with leaves out changes of the pod itself, which quotaLimits excludes.
func (l *quotaLimits) with(podUID string, all []quotaChange) *quotaLimits {
	if l == nil {
		return nil
	}
	next := *l
	for _, m := range all {
		if m.uid == podUID {
			continue
		}
		sign := int64(-1)
		if m.added {
			sign = 1
		}
		next.account = next.account.With(m.namespace, m.charge, sign)
	}
	return &next
}
