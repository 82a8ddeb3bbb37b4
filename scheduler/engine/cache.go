package engine

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// cache has the verdicts of the requests that came last, by signature.
type cache struct {
	mu    sync.Mutex
	most  int
	used  *list.List // of *sheet, the latest first
	sheet map[string]*list.Element
}

func newCache(most int) *cache {
	return &cache{most: most, used: list.New(), sheet: map[string]*list.Element{}}
}

// sheet is one signature's: the request made ready, and the verdicts of the nodes as they
// were when it was last asked for.
type sheet struct {
	signature string
	ask       *ask

	latest atomic.Pointer[page]
	mu     sync.Mutex // of who makes the next page
}

// get is the signature's sheet, made where there is none.
func (c *cache) get(signature string, make func() (*ask, error)) (*sheet, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.sheet[signature]; e != nil {
		c.used.MoveToFront(e)
		return e.Value.(*sheet), nil
	}
	a, err := make()
	if err != nil {
		return nil, err
	}
	s := &sheet{signature: signature, ask: a}
	c.sheet[signature] = c.used.PushFront(s)
	if c.used.Len() > c.most {
		last := c.used.Remove(c.used.Back()).(*sheet)
		delete(c.sheet, last.signature)
	}
	return s, nil
}

// page is the outcomes of all nodes of a snapshot, by slot of its table, in parts that
// belong to the table's chunks. It is not changed once it is published.
type page struct {
	snapshot *Snapshot
	parts    []*part
}

type part [chunkSize]outcome

// at is the page for a snapshot: the latest, with those nodes judged anew that are not the
// same in both.
func (s *sheet) at(state *Snapshot) *page {
	if p := s.latest.Load(); p != nil && p.snapshot.version == state.version {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := s.latest.Load()
	if latest != nil && latest.snapshot.version == state.version {
		return latest
	}
	p := s.next(latest, state)
	if latest == nil || latest.snapshot.version < state.version {
		s.latest.Store(p)
	}
	return p
}

// next is the page for state, with all that it can have of an other one.
func (s *sheet) next(old *page, state *Snapshot) *page {
	p := &page{snapshot: state, parts: make([]*part, len(state.table))}
	f := s.ask.fitter()
	defer f.release()
	for i, c := range state.table {
		var was *chunk
		if old != nil && i < len(old.parts) {
			if was = old.snapshot.table[i]; was == c {
				p.parts[i] = old.parts[i]
				continue
			}
		}
		if c == nil {
			continue
		}
		fresh := new(part)
		if was != nil {
			*fresh = *old.parts[i]
		}
		for k, n := range c {
			if n != nil && (was == nil || was[k] != n) {
				fresh[k] = f.fit(n)
			}
		}
		p.parts[i] = fresh
	}
	return p
}
