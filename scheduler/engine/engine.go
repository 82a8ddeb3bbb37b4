// Package engine keeps the state of the cluster's GPUs and decides whether, where and how well a pod fits.
// Events (SetNode, SetPod, …) and Reserve change the state; readers use immutable snapshots. Reserve reserves
// on the newest state, so that concurrent schedulers never reserve a GPU twice; SetPod with the bound pod
// confirms it. Plugin, extender, metrics and page use it. It is safe for concurrent use.
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

// DefaultReservationTTL is longer than a bind takes on a slow API server.
const DefaultReservationTTL = 5 * time.Minute

// DefaultSignatures is for Options.Signatures.
const DefaultSignatures = 128

type Options struct {
	Request request.Options
	// Policies of pods that set none, in the syntax of package choose.
	NodePolicy, GPUPolicy, Weights string
	// NodeSelector has the labels of the nodes that get pods; empty: all that have registered GPUs.
	NodeSelector map[string]string
	// Keys verify bound pods' grants; failures are reported as problems, and the GPUs still count.
	Keys           grant.Verifier
	Clock          func() time.Time
	ReservationTTL time.Duration
	// Signatures is how many requests the cache keeps.
	Signatures int
}

// Engine is the state of the cluster's GPUs.
type Engine struct {
	options  Options
	verdicts *cache

	newest atomic.Pointer[Snapshot]
	// soonest is not after the first expiry, in Unix nanoseconds; 0: there is none.
	soonest atomic.Int64

	mu           sync.Mutex // protects the fields below; serializes changes of newest
	pods         map[string]*pod
	quotas       *quota.Accounts
	reservations map[string]*pod
	problemPods  map[string]*pod
	// pending are unbound pods that request GPUs, by UID.
	pending  map[string]*scheduler.Pod
	free     []int // free rows of the table
	rows     int   // rows ever used
	versions uint64

	stats counters
}

func New(o Options) (*Engine, error) {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.ReservationTTL <= 0 {
		o.ReservationTTL = DefaultReservationTTL
	}
	if o.Signatures <= 0 {
		o.Signatures = DefaultSignatures
	}
	if _, err := parsePolicies(o.NodePolicy, o.GPUPolicy, o.Weights); err != nil {
		return nil, err
	}
	e := &Engine{options: o, verdicts: newCache(o.Signatures), pods: map[string]*pod{}, reservations: map[string]*pod{},
		problemPods: map[string]*pod{}, pending: map[string]*scheduler.Pod{}, quotas: quota.NewAccounts()}
	e.newest.Store(&Snapshot{})
	return e, nil
}

func (e *Engine) Names() request.Names { return e.options.Request.Names }

// Request parses the pod's request; nil, nil: no GPU requested.
func (e *Engine) Request(pod *scheduler.Pod) (*request.Request, error) {
	return request.FromPod(pod, e.options.Request)
}

func (e *Engine) Snapshot() *Snapshot {
	if soonest := e.soonest.Load(); soonest != 0 && e.options.Clock().UnixNano() >= soonest {
		e.mu.Lock()
		e.expire()
		e.mu.Unlock()
	}
	return e.newest.Load()
}

// Snapshot is an immutable state of the cluster.
type Snapshot struct {
	version      uint64
	table        table
	rows         shards[int] // of the table, by node name
	nodesVersion uint64
}

// NodesVersion changes with the set of nodes with GPUs.
func (s *Snapshot) NodesVersion() uint64 { return s.nodesVersion }

func (n *node) offers() bool { return n != nil && n.registered && len(n.gpus.total) > 0 }

func (s *Snapshot) node(name string) *node {
	row, ok := s.rows.get(name)
	if !ok {
		return nil
	}
	return s.table.at(row)
}

// change builds a snapshot; the caller holds mu from begin to commit.
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

func (c change) node(name string) *node {
	if n := c.next.node(name); n != nil {
		return n
	}
	return &node{name: name, gpus: noGPUs}
}

// set replaces the node's state.
func (c change) set(n *node) {
	row, ok := c.next.rows.get(n.name)
	var old *node
	if ok {
		old = c.next.table.at(row)
	}
	if old.offers() != n.offers() {
		c.next.nodesVersion++
	}
	switch {
	case n.empty() && !ok:
		return
	case n.empty():
		c.next.rows = c.next.rows.without(n.name)
		c.e.free = append(c.e.free, row)
		n = nil
	case !ok:
		row = c.e.newRow()
		c.next.rows = c.next.rows.with(n.name, row)
	}
	c.e.versions++
	if n != nil {
		n.version = c.e.versions
	}
	c.next.table = c.next.table.with(row, n, c.e.versions)
}

func (e *Engine) newRow() int {
	if last := len(e.free) - 1; last >= 0 {
		row := e.free[last]
		e.free = e.free[:last]
		return row
	}
	e.rows++
	return e.rows - 1
}
