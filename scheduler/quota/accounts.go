package quota

import (
	"cmp"
	"fmt"
	"maps"
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

// Account is a namespace's limits and use. Immutable.
type Account struct {
	Namespace string
	Limits    Limits           // the lowest of all ResourceQuotas
	Used      Charge           // without Model
	models    map[string]int64 // percent of GPUs, by model
	gpus      *GPUs
}

// Plus adds a pod.
func (a *Account) Plus(c Charge) *Account { return a.change(c, 1) }

// Minus removes a pod.
func (a *Account) Minus(c Charge) *Account { return a.change(c, -1) }

func (a *Account) change(c Charge, sign int64) *Account {
	next := *a
	next.Used = a.Used.add(c, sign)
	next.models = maps.Clone(a.models)
	if next.models == nil {
		next.models = map[string]int64{}
	}
	if next.models[c.Model] += sign * c.GPUPercent; next.models[c.Model] == 0 {
		delete(next.models, c.Model)
	}
	return &next
}

// Left is what the ResourceQuotas leave; it may be negative, or Unlimited.
func (a *Account) Left() Limits {
	left := a.Limits
	if left.MemoryMiB != Unlimited {
		left.MemoryMiB -= a.Used.MemoryMiB
	}
	if left.Cores != Unlimited {
		left.Cores -= a.Used.Cores
	}
	return left
}

// Limited reports whether there is anything to check.
func (a *Account) Limited() bool {
	return a.Limits != NoLimits || a.gpus.of(a.Namespace) != nil || a.gpus != nil && a.gpus.unreadable != nil
}

// Check checks a pod against the ResourceQuotas. Errors are *Error.
func (a *Account) Check(c Charge) error {
	left := a.Left()
	for _, f := range [...]struct {
		what                         string
		requested, left, limit, used int64
	}{
		{"memory in MiB", c.MemoryMiB, left.MemoryMiB, a.Limits.MemoryMiB, a.Used.MemoryMiB},
		{"cores", c.Cores, left.Cores, a.Limits.Cores, a.Used.Cores},
	} {
		if f.requested > 0 && f.requested > f.left {
			return &Error{Namespace: a.Namespace, Requested: f.requested, Used: f.used, Limit: f.limit, What: f.what}
		}
	}
	return nil
}

type Error struct {
	Namespace string
	// What is limited, such as "memory in MiB"; the whole message if there are no numbers.
	What string
	// Requested is on top of Used.
	Requested, Used, Limit int64
}

func (e *Error) Error() string {
	if e.Requested == 0 {
		return fmt.Sprintf("quota of namespace %s: %s", e.Namespace, e.What)
	}
	return fmt.Sprintf("quota of namespace %s: %s: %d requested, %d of %d used", e.Namespace, e.What, e.Requested, e.Used, e.Limit)
}
