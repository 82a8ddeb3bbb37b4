package quota

import (
	"cmp"
	"slices"
)

// Accounts has the accounts of all namespaces. It is not safe for concurrent use; an Account is.
type Accounts struct {
	accounts map[string]*Account
	limits   map[string]map[string]Limits // by namespace and quota
	pods     map[string]entry
	gpus     *GPUs
}

type entry struct {
	namespace string
	charge    Charge
}

// NewAccounts returns accounts without limits and pods.
func NewAccounts() *Accounts {
	return &Accounts{accounts: map[string]*Account{}, limits: map[string]map[string]Limits{}, pods: map[string]entry{}}
}

func (b *Accounts) SetLimits(namespace, name string, l Limits) {
	if b.limits[namespace] == nil {
		b.limits[namespace] = map[string]Limits{}
	}
	b.limits[namespace][name] = l
	b.updateLimits(namespace)
}

// DropLimits removes a ResourceQuota.
func (b *Accounts) DropLimits(namespace, name string) {
	delete(b.limits[namespace], name)
	if len(b.limits[namespace]) == 0 {
		delete(b.limits, namespace)
	}
	b.updateLimits(namespace)
}

func (b *Accounts) updateLimits(namespace string) {
	l := NoLimits
	for _, each := range b.limits[namespace] {
		l = l.least(each)
	}
	a := *b.Account(namespace)
	a.Limits = l
	b.put(&a)
}

// SetGPUs sets gpu-manager's quota; nil: none.
func (b *Accounts) SetGPUs(c *GPUs) {
	b.gpus = c
	for _, old := range b.accounts {
		a := *old
		a.gpus = c
		b.accounts[a.Namespace] = &a
	}
}

func (b *Accounts) Charge(namespace, pod string, c Charge) {
	b.Release(pod)
	if c.empty() {
		return
	}
	b.pods[pod] = entry{namespace, c}
	b.put(b.Account(namespace).Plus(c))
}

// Release removes a pod's charge.
func (b *Accounts) Release(pod string) {
	e, ok := b.pods[pod]
	if !ok {
		return
	}
	delete(b.pods, pod)
	b.put(b.Account(e.namespace).Minus(e.charge))
}

func (b *Accounts) Account(namespace string) *Account {
	if a, ok := b.accounts[namespace]; ok {
		return a
	}
	return &Account{Namespace: namespace, Limits: NoLimits, gpus: b.gpus}
}

// Limited returns the accounts with a ResourceQuota, by namespace.
func (b *Accounts) Limited() []*Account {
	var all []*Account
	for _, a := range b.accounts {
		if a.Limits != NoLimits {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *Account) int { return cmp.Compare(a.Namespace, b.Namespace) })
	return all
}

// put stores an account that is not empty.
func (b *Accounts) put(a *Account) {
	if a.Limits == NoLimits && a.Used.empty() && len(a.models) == 0 {
		delete(b.accounts, a.Namespace)
		return
	}
	b.accounts[a.Namespace] = a
}
