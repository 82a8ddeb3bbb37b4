package quota

import (
	"maps"
	"slices"
)

// book is a ResourceQuota with a scope or a pool, and what it counts.
type book struct {
	Quota
	name string
	used Charge
}

// counted returns the books with a pod more (1) or less (-1).
func counted(books []book, c Charge, sign int64) []book {
	if len(books) == 0 {
		return nil
	}
	books = slices.Clone(books)
	for i := range books {
		if books[i].Scope.Matches(c.Class) {
			books[i].used = books[i].used.add(c, sign)
		}
	}
	return books
}

// pooled is the pool's limits of what the quota limits.
func (b *book) pooled(l Limits) Limits {
	if b.MemoryMiB == Unlimited {
		l.MemoryMiB = Unlimited
	}
	if b.Cores == Unlimited {
		l.Cores = Unlimited
	}
	return l
}

// pools are those of a namespace's quotas, by name. Immutable.
type pools map[string]*pool

// pool is quotas that lend each other what they do not use.
type pool struct {
	limits  Limits            // the sum
	used    Charge            // of what is limited
	members map[string][]book // by namespace
}

func (b *Accounts) withPools(a *Account) *Account {
	next := *a
	next.pools = pools{}
	for i := range a.books {
		if name := a.books[i].Pool; name != "" && next.pools[name] == nil {
			next.pools[name] = b.pool(name)
		}
	}
	return &next
}

func (b *Accounts) pool(name string) *pool {
	p := &pool{members: map[string][]book{}}
	for namespace, a := range b.accounts {
		for _, m := range a.books {
			if m.Pool != name {
				continue
			}
			p.members[namespace] = append(p.members[namespace], m)
			p.limits.MemoryMiB = sum(p.limits.MemoryMiB, m.MemoryMiB)
			p.limits.Cores = sum(p.limits.Cores, m.Cores)
			p.used = p.used.add(m.limited(m.used), 1)
		}
	}
	return p
}

// sum leaves out a quota without the limit.
func sum(all, limit int64) int64 {
	if limit == Unlimited {
		return all
	}
	return min(all, Unlimited-1-limit) + limit
}

// limited is the part of a charge that the quota limits.
func (b *book) limited(c Charge) Charge {
	if b.MemoryMiB == Unlimited {
		c.MemoryMiB = 0
	}
	if b.Cores == Unlimited {
		c.Cores = 0
	}
	return c
}

func (p pools) with(namespace string, c Charge, sign int64) pools {
	next := maps.Clone(p)
	for name, each := range p {
		members := each.members[namespace]
		if len(members) == 0 {
			continue
		}
		changed := *each
		changed.members = maps.Clone(each.members)
		changed.members[namespace] = counted(members, c, sign)
		for i := range members {
			if members[i].Scope.Matches(c.Class) {
				changed.used = changed.used.add(members[i].limited(c), sign)
			}
		}
		next[name] = &changed
	}
	return next
}

// Lends reports whether the pod's namespace stays within its own quotas of pools with it: then what other namespaces
// borrowed is taken back for it.
func (a *Account) Lends(c Charge) bool {
	lends := false
	for i := range a.books {
		b := &a.books[i]
		if b.Pool == "" || !b.Scope.Matches(c.Class) {
			continue
		}
		if a.exceeds(c, b.Limits, b.used, "") != nil {
			return false
		}
		lends = true
	}
	return lends
}

// Borrows reports whether a pod of another namespace uses more than that namespace's own quota of a pool of a.
func (a *Account) Borrows(namespace string, c Charge) bool {
	for _, p := range a.pools {
		for _, m := range p.members[namespace] {
			if m.Scope.Matches(c.Class) && (m.used.MemoryMiB > m.MemoryMiB || m.used.Cores > m.Cores) {
				return true
			}
		}
	}
	return false
}
