// Package engine is the heart of the scheduler: which GPUs of the cluster are taken by whom,
// and whether, where and how well a pod fits. It has one state, changed by events (SetNode,
// SetPod, …) and by Reserve, each of which costs its own change and not the cluster; readers
// have snapshots of it, which are never changed.
//
// The doors (plugin, extender) translate and call: Evaluate tells of each node whether the
// pod fits and how well, Reserve books it on the newest state, and the booking is for good
// once the pod comes back bound with SetPod. Reserve alone decides: whatever number
// of callers and doors there are, what it has booked is never booked again.
//
// The package knows no types of Kubernetes, and has no goroutines but those that a call
// waits for. It is safe for concurrent use.
package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// DefaultReservationTTL is how long a reservation waits for its pod to be bound: longer
// than a bind that an API server under load is slow with.
const DefaultReservationTTL = 5 * time.Minute

// DefaultSignatures is how many requests' verdicts are kept.
const DefaultSignatures = 128

// Options are an engine's.
type Options struct {
	// Request says how requests are read (package request).
	Request request.Options
	// NodePolicy, GPUPolicy and Weights are for pods that name none: their texts are
	// package choose's, and empty is its default.
	NodePolicy, GPUPolicy, Weights string
	// QuotaLabels are the nodes' labels that gpu-manager's quota goes by;
	// quota.DefaultLabels where there are none.
	QuotaLabels quota.Labels
	// Keys verify the grants on bound pods: one that is not signed with them is a problem.
	// It is counted all the same. Nil: they need not be signed.
	Keys grant.Verifier
	// Clock is time.Now where it is nil.
	Clock func() time.Time
	// ReservationTTL is DefaultReservationTTL where it is 0.
	ReservationTTL time.Duration
	// Signatures is how many different requests' verdicts are kept; DefaultSignatures where it is 0.
	Signatures int
}

// Engine is the state of the cluster's GPUs and what is decided on it.
type Engine struct {
	options  Options
	verdicts *cache

	newest atomic.Pointer[Snapshot]
	// soonest is when the first reservation ends, in Unix nanoseconds; 0: there is none.
	soonest atomic.Int64

	mu           sync.Mutex // guards what follows, and orders the changes of newest
	pods         map[string]*pod
	quotas       *quota.Accounts
	reservations expiryHeap
	allocated    int             // how many pods hold something
	problemPods  map[string]*pod // those that have a problem
	// unplaced are the pods that ask for GPUs and are on no node, by UID.
	pending map[string]*scheduler.Pod
	free    []int // slots of the table that no node has
	slots   int   // of the table that were ever given
	// versions is the last that a node or a chunk has got.
	versions uint64

	stats counters
}

// New is an engine that knows nothing yet. An error is about the options.
func New(o Options) (*Engine, error) {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.ReservationTTL <= 0 {
		o.ReservationTTL = DefaultReservationTTL
	}
	if o.QuotaLabels == (quota.Labels{}) {
		o.QuotaLabels = quota.DefaultLabels()
	}
	if o.Signatures <= 0 {
		o.Signatures = DefaultSignatures
	}
	if _, err := parsePolicies(o.NodePolicy, o.GPUPolicy, o.Weights); err != nil {
		return nil, err
	}
	e := &Engine{options: o, verdicts: newCache(o.Signatures), pods: map[string]*pod{}, problemPods: map[string]*pod{}, pending: map[string]*scheduler.Pod{}, quotas: quota.NewAccounts()}
	e.newest.Store(&Snapshot{})
	return e, nil
}

// Names are the names of resources that the engine goes by.
func (e *Engine) Names() request.Names { return e.options.Request.Names }

// Request is what a pod asks for by the engine's options; nil, nil if it asks for no GPU.
func (e *Engine) Request(pod *scheduler.Pod) (*request.Request, error) {
	return request.FromPod(pod, e.options.Request)
}

// Snapshot is the newest state. It costs nothing and is not changed by what happens later.
func (e *Engine) Snapshot() *Snapshot {
	if soonest := e.soonest.Load(); soonest != 0 && e.options.Clock().UnixNano() >= soonest {
		e.mu.Lock()
		e.expire()
		e.mu.Unlock()
	}
	return e.newest.Load()
}

// Snapshot is the state of the cluster at a moment.
type Snapshot struct {
	// version grows by each change.
	version uint64
	table   table
	slots   shards[int] // of the table, by the node's name
	totals  totals
	// roster grows by each change of which nodes have GPUs.
	nodesVersion uint64
}

// tally is counts of what is in a snapshot, kept with each change.
type totals struct {
	nodes, gpus int // registered
	problems    int // of nodes
}

func (t *totals) add(n *node, sign int) {
	if n == nil {
		return
	}
	if n.registered {
		t.nodes += sign
		t.gpus += sign * len(n.gpus.total)
	}
	t.problems += sign * n.problems(nil)
}

// Version is the state's: it grows by each change, so that two snapshots with the same
// version are the same.
func (s *Snapshot) Version() uint64 { return s.version }

// Roster is the same for snapshots in which the same nodes have GPUs.
func (s *Snapshot) NodesVersion() uint64 { return s.nodesVersion }

// Offering are the names of the nodes that have GPUs, in no order.
func (s *Snapshot) Offering() (names []string) {
	s.each(func(n *node) {
		if n.offers() {
			names = append(names, n.name)
		}
	})
	return names
}

// offers says whether the node has GPUs registered.
func (n *node) offers() bool { return n != nil && n.registered && len(n.gpus.total) > 0 }

// node is the node of that name, or nil.
func (s *Snapshot) node(name string) *node {
	slot, ok := s.slots.get(name)
	if !ok {
		return nil
	}
	return s.table.at(slot)
}

// change is a new state in the making: what it does shows all at once. The caller holds mu
// from begin to commit.
type change struct {
	e    *Engine
	next *Snapshot
}

func (e *Engine) begin() change {
	next := *e.newest.Load()
	next.version++
	return change{e, &next}
}

func (c change) commit() { c.e.newest.Store(c.next) }

// node is the node's state, which may be that nothing is known.
func (c change) node(name string) *node {
	if n := c.next.node(name); n != nil {
		return n
	}
	return &node{name: name, gpus: noGPUs}
}

// set is the node's new state; n is not published yet.
func (c change) set(n *node) {
	slot, ok := c.next.slots.get(n.name)
	var old *node
	if ok {
		old = c.next.table.at(slot)
		c.next.totals.add(old, -1)
	}
	if old.offers() != n.offers() {
		c.next.nodesVersion++
	}
	switch {
	case n.empty() && !ok:
		return
	case n.empty():
		c.next.slots = c.next.slots.without(n.name)
		c.e.free = append(c.e.free, slot)
		n = nil
	case !ok:
		slot = c.e.slot()
		c.next.slots = c.next.slots.with(n.name, slot)
	}
	c.e.versions++
	if n != nil {
		n.version = c.e.versions
		c.next.totals.add(n, 1)
	}
	c.next.table = c.next.table.with(slot, n, c.e.versions)
}

func (e *Engine) slot() int {
	if last := len(e.free) - 1; last >= 0 {
		slot := e.free[last]
		e.free = e.free[:last]
		return slot
	}
	e.slots++
	return e.slots - 1
}
