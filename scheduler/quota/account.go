package quota

import (
	"fmt"
	"maps"
)

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
