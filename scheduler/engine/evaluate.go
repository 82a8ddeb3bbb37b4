package engine

import (
	"container/list"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Evaluation has a pod's verdicts for all nodes of a snapshot. Reading it takes no lock.
type Evaluation struct {
	snapshot *Snapshot
	podRequest
	outcomes *outcomeTable
	// own is the node with the pod's allocation, which counts as free.
	own        string
	ownNode    *node
	ownOutcome outcome
	quotas     *quotaLimits // nil: none
	err        error
}

// Evaluate evaluates all nodes; nodes that have not changed since an equal request come from the cache. The
// pod's own allocation counts as free.
func (e *Engine) Evaluate(s *Snapshot, object *scheduler.Pod, r *request.Request) *Evaluation {
	entry, err := e.cacheEntry(r)
	return e.evaluation(s, object, r, entry, err)
}

// evaluateAside is for reports: it leaves the cache to the requests that are being scheduled.
func (e *Engine) evaluateAside(s *Snapshot, object *scheduler.Pod, r *request.Request) *Evaluation {
	entry, err := e.verdicts.peek(r.Signature), error(nil)
	if entry == nil {
		entry = &cacheEntry{signature: r.Signature}
		entry.compiled, err = e.compile(r)
	}
	return e.evaluation(s, object, r, entry, err)
}

func (e *Engine) evaluation(s *Snapshot, object *scheduler.Pod, r *request.Request, entry *cacheEntry, err error) *Evaluation {
	v := &Evaluation{snapshot: s, podRequest: podRequest{pod: object}}
	if err != nil {
		v.err = err
		return v
	}
	v.compiled, v.outcomes, v.positions = entry.compiled, entry.outcomes(s), positions(r)
	e.mu.Lock()
	own := e.allocatedNode(object.UID)
	v.quotas = e.quotaLimits(object, r)
	e.mu.Unlock()
	if n := s.node(own); n.allocation(object.UID) != nil {
		f := v.fitter()
		defer f.release()
		v.own, v.ownNode = own, n.without(object.UID)
		v.ownOutcome = f.fit(v.ownNode)
	}
	return v
}

// AllocatedNode is where the pod has GPUs; empty: nowhere.
func (e *Engine) AllocatedNode(podUID string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.allocatedNode(podUID)
}

func (e *Engine) allocatedNode(podUID string) string {
	if p := e.pods[podUID]; p != nil && p.allocation != nil {
		return p.allocation.placement.Node
	}
	return ""
}

// current returns the pod's node and allocation in the newest state; nil: none. The caller holds mu.
func (e *Engine) current(podUID string) (*node, *allocation) {
	n := e.newest.Load().node(e.allocatedNode(podUID))
	return n, n.allocation(podUID)
}

// Err is set if no node can be evaluated: an invalid policy.
func (v *Evaluation) Err() error { return v.err }

func (v *Evaluation) Snapshot() *Snapshot { return v.snapshot }

// Limited reports whether quotas count for the pod.
func (v *Evaluation) Limited() bool { return v.quotas != nil }

func (v *Evaluation) Verdict(node string) Verdict { return v.cached(node, v.quotas) }

func (v *Evaluation) cached(node string, l *quotaLimits) Verdict {
	row, ok := v.snapshot.rows.get(node)
	switch {
	case v.err != nil:
		verdict := v.verdict(node, nil, &unknown, nil)
		verdict.err = v.err
		return verdict
	case !ok:
		return v.verdict(node, nil, &unknown, nil)
	}
	return v.atRow(v.snapshot.table.at(row), &v.outcomes.chunks[row/chunkSize].outcomes[row%chunkSize], l)
}

// atRow is the verdict on a node with its outcome, unless the pod has an allocation there.
func (v *Evaluation) atRow(n *node, o *outcome, l *quotaLimits) Verdict {
	if v.ownNode != nil && n.name == v.own {
		return v.verdict(n.name, v.ownNode, &v.ownOutcome, l)
	}
	return v.verdict(n.name, n, o, l)
}

var unknown = outcome{counts: Counts{NodeUnregistered: 1}}

// Verdict is the result for a pod on a node.
type Verdict struct {
	Fits bool
	// Score is from 0 to choose.MaxNodeScore.
	Score int64

	name     string
	node     *node    // as evaluated; nil: unknown
	outcome  *outcome // read-only
	err      error    // a quota or an invalid policy
	request  *podRequest
	smallest bool // fits only with the smallest GPUs
}

type podRequest struct {
	pod *scheduler.Pod
	*compiled
	positions []int // of compiled.containers in the pod
}

func (s *podRequest) verdict(name string, n *node, o *outcome, l *quotaLimits) Verdict {
	v := Verdict{name: name, node: n, outcome: o, request: s}
	if l != nil {
		v.applyQuotas(l)
	}
	v.Fits, v.Score = v.outcome.fits, int64(v.outcome.score)
	return v
}

// applyQuotas tries smaller GPUs if the policy's exceed the quotas.
func (v *Verdict) applyQuotas(l *quotaLimits) {
	err := l.check(v.node, v.outcome)
	if err == nil {
		return
	}
	if v.outcome.fits && v.request.relative && v.node.gpus.mixed {
		f := v.request.fitter()
		defer f.release()
		if small := f.fitSmallest(v.node); small.fits && l.check(v.node, &small) == nil {
			v.outcome, v.smallest = &small, true
			return
		}
	}
	if exceeded, ok := v.outcome.withQuotaExceeded(v.node); ok {
		v.outcome, v.err = exceeded, err
	}
}

// Reasons counts the failed GPUs; zero if the pod fits.
func (v *Verdict) Reasons() Counts { return v.outcome.counts }

// Reason is the main reason; OK if the pod fits.
func (v *Verdict) Reason() Code {
	if v.Fits {
		return OK
	}
	return v.outcome.counts.Main()
}

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

// peek returns nil if the request is not in the cache.
func (c *cache) peek(signature string) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[signature]; e != nil {
		return e.Value.(*cacheEntry)
	}
	return nil
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
	latest := make([]int, 0, chunkSize) // rows of nodes that were evaluated, no two of them equal
	for k, n := range c.nodes {
		switch {
		case n == nil:
			p.versions[k] = 0
		case p.versions[k] != n.version:
			p.versions[k] = n.version
			if i := slices.IndexFunc(latest, func(i int) bool { return c.nodes[i].equal(n) }); i >= 0 && !f.req.namesGPUs {
				p.outcomes[k] = p.outcomes[latest[i]]
				continue
			}
			p.outcomes[k] = f.evaluate(n)
			latest = append(latest[max(len(latest)-comparedNodes+1, 0):], k)
		}
	}
	return p
}

// comparedNodes limits what a node costs that is equal to none.
const comparedNodes = 4

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
