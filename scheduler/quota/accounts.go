package quota

import (
	"cmp"
	"slices"
)

// Book has what each namespace may have, and what its pods take. It is not safe for
// concurrent use; what View returns is, and never changes.
type Accounts struct {
	accounts map[string]*Account
	limits   map[string]map[string]Limits // by namespace and quota
	pods     map[string]entry
	gpus     *GPUs
}

// entry is what was charged for a pod.
type entry struct {
	namespace string
	charge    Charge
}

// NewBook has no limits and no pods.
func NewAccounts() *Accounts {
	return &Accounts{accounts: map[string]*Account{}, limits: map[string]map[string]Limits{}, pods: map[string]entry{}}
}

// SetLimits gives a namespace a resource quota, in place of the one of that name. Of several
// the lowest of each holds.
func (b *Accounts) SetLimits(namespace, name string, l Limits) {
	if b.limits[namespace] == nil {
		b.limits[namespace] = map[string]Limits{}
	}
	b.limits[namespace][name] = l
	b.updateLimits(namespace)
}

// DropLimits takes a resource quota away.
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
	a.limits = l
	b.put(&a)
}

// SetGPUs gives all namespaces gpu-manager's quota; nil: there is none.
func (b *Accounts) SetGPUs(c *GPUs) {
	b.gpus = c
	for _, old := range b.accounts {
		a := *old
		a.gpus = c
		b.accounts[a.namespace] = &a
	}
}

// Charge books a pod, in place of what was booked for it before.
func (b *Accounts) Charge(namespace, pod string, c Charge) {
	b.Release(pod)
	if c.empty() {
		return
	}
	b.pods[pod] = entry{namespace, c}
	b.put(b.Account(namespace).Plus(c))
}

// Refund takes a pod out; one that isn't in it is nothing.
func (b *Accounts) Release(pod string) {
	e, there := b.pods[pod]
	if !there {
		return
	}
	delete(b.pods, pod)
	b.put(b.Account(e.namespace).Minus(e.charge))
}

// View is a namespace's account as it is now. It stays so: the next charge makes another.
func (b *Accounts) Account(namespace string) *Account {
	if a, there := b.accounts[namespace]; there {
		return a
	}
	return &Account{namespace: namespace, limits: NoLimits, gpus: b.gpus}
}

// Limited are the accounts that have a resource quota, by namespace.
func (b *Accounts) Limited() []*Account {
	var all []*Account
	for _, a := range b.accounts {
		if a.limits != NoLimits {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *Account) int { return cmp.Compare(a.namespace, b.namespace) })
	return all
}

// put keeps an account, unless nothing is in it.
func (b *Accounts) put(a *Account) {
	if a.limits == NoLimits && a.used.empty() && len(a.models) == 0 {
		delete(b.accounts, a.namespace)
		return
	}
	b.accounts[a.namespace] = a
}
