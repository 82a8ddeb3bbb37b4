package engine

import (
	"container/list"
	"runtime"
	"sync"
	"sync/atomic"
)

// cache keeps the outcomes of recent requests.
type cache struct {
	mu      sync.Mutex
	max     int
	used    *list.List // of *cacheEntry, latest first
	entries map[string]*list.Element
}

func newCache(most int) *cache {
	return &cache{max: most, used: list.New(), entries: map[string]*list.Element{}}
}

type cacheEntry struct {
	signature string
	compiled  *compiled

	latest atomic.Pointer[outcomeTable]
	mu     sync.Mutex // serializes updates
}

func (c *cache) get(signature string, make func() (*compiled, error)) (*cacheEntry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[signature]; e != nil {
		c.used.MoveToFront(e)
		return e.Value.(*cacheEntry), nil
	}
	a, err := make()
	if err != nil {
		return nil, err
	}
	s := &cacheEntry{signature: signature, compiled: a}
	c.entries[signature] = c.used.PushFront(s)
	if c.used.Len() > c.max {
		last := c.used.Remove(c.used.Back()).(*cacheEntry)
		delete(c.entries, last.signature)
	}
	return s, nil
}

// outcomeTable has the outcomes of a snapshot's nodes by row. Immutable; it does not reference the
// snapshot.
type outcomeTable struct {
	version uint64 // the snapshot's
	chunks  []*outcomeChunk
}

type outcomeChunk struct {
	version  uint64            // the chunk's
	versions [chunkSize]uint64 // the nodes'; 0: none
	outcomes [chunkSize]outcome
}

// outcomes evaluates only nodes that differ from the latest table.
func (s *cacheEntry) outcomes(state *Snapshot) *outcomeTable {
	if p := s.latest.Load(); p != nil && p.version == state.version {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := s.latest.Load()
	if latest != nil && latest.version == state.version {
		return latest
	}
	p := s.update(latest, state)
	if latest == nil || latest.version < state.version {
		s.latest.Store(p)
	}
	return p
}

func (s *cacheEntry) update(old *outcomeTable, state *Snapshot) *outcomeTable {
	p := &outcomeTable{version: state.version, chunks: make([]*outcomeChunk, len(state.table))}
	if old != nil {
		copy(p.chunks, old.chunks)
	}
	var changed []int
	for i, c := range state.table {
		if c != nil && (p.chunks[i] == nil || p.chunks[i].version != c.version) {
			changed = append(changed, i)
		}
	}
	parallel(len(changed), func(take func() (int, bool)) {
		f := s.compiled.fitter()
		defer f.release()
		for k, more := take(); more; k, more = take() {
			i := changed[k]
			f.budget = evaluationSteps / len(changed)
			p.chunks[i] = p.chunks[i].update(f, state.table[i])
		}
	})
	return p
}

func (old *outcomeChunk) update(f *fitter, c *chunk) *outcomeChunk {
	p := new(outcomeChunk)
	if old != nil {
		*p = *old
	}
	p.version = c.version
	for k, n := range c.nodes {
		switch {
		case n == nil:
			p.versions[k] = 0
		case p.versions[k] != n.version:
			p.versions[k], p.outcomes[k] = n.version, f.evaluate(n)
		}
	}
	return p
}

// chunksPerWorker justifies one more goroutine: a chunk takes tens of microseconds.
const chunksPerWorker = 4

// parallel calls work in several goroutines; each takes items until none is left.
func parallel(n int, work func(take func() (int, bool))) {
	var next atomic.Int64
	take := func() (int, bool) {
		k := int(next.Add(1)) - 1
		return k, k < n
	}
	var wg sync.WaitGroup
	for range min(n/chunksPerWorker, runtime.GOMAXPROCS(0)) - 1 {
		wg.Go(func() { work(take) })
	}
	work(take)
	wg.Wait()
}
