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
	quotas   map[string]map[string]Quota // by namespace and name
	pods     map[string]entry
	gpus     *GPUs
}

type entry struct {
	namespace string
	charge    Charge
}

// NewAccounts returns accounts without limits and pods.
func NewAccounts() *Accounts {
	return &Accounts{accounts: map[string]*Account{}, quotas: map[string]map[string]Quota{}, pods: map[string]entry{}}
}

func (b *Accounts) SetQuota(namespace, name string, q Quota) {
	if b.quotas[namespace] == nil {
		b.quotas[namespace] = map[string]Quota{}
	}
	b.quotas[namespace][name] = q
	b.updateQuotas(namespace)
}

// DropQuota removes a ResourceQuota.
func (b *Accounts) DropQuota(namespace, name string) {
	delete(b.quotas[namespace], name)
	if len(b.quotas[namespace]) == 0 {
		delete(b.quotas, namespace)
	}
	b.updateQuotas(namespace)
}

func (b *Accounts) updateQuotas(namespace string) {
	a := *b.account(namespace)
	a.Limits, a.books = NoLimits, nil
	for _, name := range slices.Sorted(maps.Keys(b.quotas[namespace])) {
		if q := b.quotas[namespace][name]; q.plain() {
			a.Limits = a.Limits.least(q.Limits)
		} else {
			a.books = append(a.books, book{Quota: q, name: name})
		}
	}
	for _, e := range b.pods {
		if e.namespace == namespace {
			a.books = counted(a.books, e.charge, 1)
		}
	}
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
	b.put(b.account(namespace).Plus(c))
}

// Release removes a pod's charge.
func (b *Accounts) Release(pod string) {
	e, ok := b.pods[pod]
	if !ok {
		return
	}
	delete(b.pods, pod)
	b.put(b.account(e.namespace).Minus(e.charge))
}

func (b *Accounts) Account(namespace string) *Account {
	a := b.account(namespace)
	for i := range a.books {
		if a.books[i].Pool != "" {
			return b.withPools(a)
		}
	}
	return a
}

// account is without pools.
func (b *Accounts) account(namespace string) *Account {
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
	if a.Limits == NoLimits && a.Used.empty() && len(a.models) == 0 && len(a.books) == 0 {
		delete(b.accounts, a.Namespace)
		return
	}
	b.accounts[a.Namespace] = a
}

// Account is a namespace's limits and use. Immutable.
type Account struct {
	Namespace string
	Limits    Limits           // the lowest of the ResourceQuotas without scopes and pools
	Used      Charge           // without Model
	models    map[string]int64 // percent of GPUs, by model
	gpus      *GPUs
	books     []book // the other ResourceQuotas
	pools     pools
}

// Plus adds a pod.
func (a *Account) Plus(c Charge) *Account { return a.With(a.Namespace, c, 1) }

// Minus removes a pod.
func (a *Account) Minus(c Charge) *Account { return a.With(a.Namespace, c, -1) }

// With adds (1) or removes (-1) a pod of any namespace: those of other namespaces count in pools.
func (a *Account) With(namespace string, c Charge, sign int64) *Account {
	next := *a
	next.pools = a.pools.with(namespace, c, sign)
	if namespace != a.Namespace {
		return &next
	}
	next.books = counted(a.books, c, sign)
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
	return len(a.books) > 0 || a.Limits != NoLimits || a.gpus.of(a.Namespace) != nil || a.gpus != nil && a.gpus.unreadable != nil
}

// Check checks a pod against the ResourceQuotas. Errors are *Error.
func (a *Account) Check(c Charge) error {
	if err := a.exceeds(c, a.Limits, a.Used, ""); err != nil {
		return err
	}
	for i := range a.books {
		b := &a.books[i]
		limits, used, of := b.Limits, b.used, " of ResourceQuota "+b.name
		switch p := a.pools[b.Pool]; {
		case !b.Scope.Matches(c.Class):
			continue
		case p != nil:
			limits, used, of = b.pooled(p.limits), p.used, " of the quota pool "+b.Pool
		}
		if err := a.exceeds(c, limits, used, of); err != nil {
			return err
		}
	}
	return nil
}

func (a *Account) exceeds(c Charge, limits Limits, used Charge, of string) error {
	for _, f := range [...]struct {
		what                   string
		requested, limit, used int64
	}{
		{"memory in MiB", c.MemoryMiB, limits.MemoryMiB, used.MemoryMiB},
		{"cores", c.Cores, limits.Cores, used.Cores},
	} {
		if f.requested > 0 && f.limit != Unlimited && f.requested > f.limit-f.used {
			return &Error{Namespace: a.Namespace, Requested: f.requested, Used: f.used, Limit: f.limit, What: f.what + of}
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
