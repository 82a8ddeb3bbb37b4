package quota

import (
	"fmt"
	"maps"
)

// Account is what a namespace may have, and what its pods take, at one moment. It never changes.
type Account struct {
	namespace string
	limits    Limits
	used      Charge
	models    map[string]int64 // percent of GPUs, by model
	gpus      *GPUs
}

// empty says whether nothing is taken.
func (c Charge) empty() bool { return c.MemoryMiB == 0 && c.Cores == 0 && c.GPUPercent == 0 }

// Plus is the account with a pod more.
func (a *Account) Plus(c Charge) *Account { return a.change(c, 1) }

// Minus is the account with a pod less: what preemption asks.
func (a *Account) Minus(c Charge) *Account { return a.change(c, -1) }

func (a *Account) change(c Charge, sign int64) *Account {
	next := *a
	next.used = Charge{MemoryMiB: a.used.MemoryMiB + sign*c.MemoryMiB, Cores: a.used.Cores + sign*c.Cores, GPUPercent: a.used.GPUPercent + sign*c.GPUPercent}
	next.models = maps.Clone(a.models)
	if next.models == nil {
		next.models = map[string]int64{}
	}
	if next.models[c.Model] += sign * c.GPUPercent; next.models[c.Model] == 0 {
		delete(next.models, c.Model)
	}
	return &next
}

// Namespace is whose account it is.
func (a *Account) Namespace() string { return a.namespace }

// Limits are what the resource quotas give, the lowest of each where there are several.
func (a *Account) Limits() Limits { return a.limits }

// Used is what the namespace's pods take; Model is empty.
func (a *Account) Used() Charge { return a.used }

// Left is what the resource quotas leave, which may be less than nothing; Unlimited where
// nothing is limited.
func (a *Account) Left() Limits {
	left := a.limits
	if left.MemoryMiB != Unlimited {
		left.MemoryMiB -= a.used.MemoryMiB
	}
	if left.Cores != Unlimited {
		left.Cores -= a.used.Cores
	}
	return left
}

// Limited says whether there is anything to check.
func (a *Account) Limited() bool {
	return a.limits != NoLimits || a.gpus.of(a.namespace) != nil || a.gpus != nil && a.gpus.unreadable != nil
}

// Check says whether the resource quotas leave room for a pod. An error is an *Error.
func (a *Account) Check(c Charge) error {
	left := a.Left()
	for _, f := range [...]struct {
		what              string
		asked, left, most int64
		used              int64
	}{
		{"memory in MiB", c.MemoryMiB, left.MemoryMiB, a.limits.MemoryMiB, a.used.MemoryMiB},
		{"cores", c.Cores, left.Cores, a.limits.Cores, a.used.Cores},
	} {
		if f.asked > 0 && f.asked > f.left {
			return &Error{Namespace: a.namespace, Requested: f.asked, Used: f.used, Limit: f.most, What: f.what}
		}
	}
	return nil
}

// Error is why a pod is more than its namespace may have.
type Error struct {
	Namespace string
	// What is limited: "memory in MiB", "cores", "GPUs of model M40 in percent"; or
	// all that is to be said, where there are no numbers.
	What string
	// Asked is what the pod asks for, on top of Used; Most is the limit.
	Requested, Used, Limit int64
}

// Error is all of it.
func (e *Error) Error() string {
	if e.Requested == 0 {
		return fmt.Sprintf("quota of namespace %s: %s", e.Namespace, e.What)
	}
	return fmt.Sprintf("quota of namespace %s: %s: %d asked, %d of %d used", e.Namespace, e.What, e.Requested, e.Used, e.Limit)
}
