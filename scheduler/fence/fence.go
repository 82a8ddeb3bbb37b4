// Package fence stops a scheduler that no longer leads. A [Fence] knows which Lease this process leads by, and how old its last
// renewal is; a [Term] is one leadership, which every write of a grant asks first and carries. It may import client-go; kube,
// plugin, extender and cmd/gpuslice-scheduler use it.
//
// A renewal's age is measured in this process, from before the request was sent: the clocks of other replicas do not count.
// It is the longer of the monotonic and the wall clock's, because the monotonic clock does not count the suspension of a
// machine. Neither clock is enough if both stand still with the machine, or if the process is suspended after it has asked: so
// the new leader changes pending pods (kube.Takeover), and an admission policy compares the term with the Lease.
package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var (
	ErrNotLeading = errors.New("another replica is the leader")
	ErrStale      = errors.New("the leader election lease was not renewed in time")
)

// Fence is safe for concurrent use. A nil Fence is that of a process without an election: it always leads.
type Fence struct {
	lease string // for messages
	get   func(context.Context) (*resourcelock.LeaderElectionRecord, types.UID, error)
	mine  func(holder string) bool
	now   func() time.Time // with both clocks

	mu      sync.Mutex
	term    string        // of the last renewal; "": this process does not lead
	uid     types.UID     // of the Lease in term
	began   time.Time     // of the request of the last renewal
	renewed time.Time     // as the renewal has it, by this machine's clock
	valid   time.Duration // of a renewal
	unread  error         // of the last read, before the first that succeeds
	lost    func(error)   // is called once
}

// Term is one leadership. The zero Term is that of a process without an election.
type Term struct {
	fence *Fence
	name  string
}

// String returns api.AnnotationLeader's value; "": there is no election.
func (t Term) String() string { return t.name }

// Term returns the current one, or an error if this process does not lead.
func (f *Fence) Term() (Term, error) {
	if f == nil {
		return Term{}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := Term{f, f.term}
	return t, f.check(t.name)
}

// Check returns an error unless this is still the term, by the last renewal that is known.
func (t Term) Check() error {
	if t.fence == nil {
		return nil
	}
	t.fence.mu.Lock()
	defer t.fence.mu.Unlock()
	return t.fence.check(t.name)
}

func (f *Fence) check(term string) error {
	if f.term == "" && f.unread != nil {
		return fmt.Errorf("find the leading kube-scheduler: read Lease %s: %w: start kube-scheduler with leader election, or the "+
			"extender without --leader-lease", f.lease, f.unread)
	}
	if term == "" || term != f.term {
		return fmt.Errorf("lease %s: %w", f.lease, ErrNotLeading)
	}
	now := f.now()
	age := max(now.Sub(f.began), now.Round(0).Sub(f.renewed.Round(0)))
	if age > f.valid {
		return fmt.Errorf("lease %s: %w: %v ago, and it is used for %v", f.lease, ErrStale, age.Round(time.Millisecond), f.valid)
	}
	return nil
}

// Confirm asks the API server whether this is still the term.
func (t Term) Confirm(ctx context.Context) error {
	if t.fence == nil {
		return nil
	}
	record, uid, err := t.fence.get(ctx)
	if err != nil {
		return fmt.Errorf("read Lease %s: %w", t.fence.lease, err)
	}
	if name(record, uid) != t.name {
		return fmt.Errorf("lease %s: %w: %q", t.fence.lease, ErrNotLeading, record.HolderIdentity)
	}
	return t.Check()
}

// name has the UID because a Lease that was made again counts its transitions from 0.
func name(r *resourcelock.LeaderElectionRecord, uid types.UID) string {
	return fmt.Sprintf("%s/%d/%s", r.HolderIdentity, r.LeaderTransitions, uid)
}

// renewedAt observes a renewal of this process. The elector does not show the Lease's UID, so it is read for a new term.
func (f *Fence) renewedAt(ctx context.Context, began time.Time, r *resourcelock.LeaderElectionRecord) {
	f.mu.Lock()
	uid, known := f.uid, f.term != "" && f.term == name(r, f.uid)
	f.mu.Unlock()
	if !known {
		found, of, err := f.get(ctx)
		if err != nil || found.HolderIdentity != r.HolderIdentity || found.LeaderTransitions != r.LeaderTransitions {
			return // the next renewal reads it again; until then this process does not lead
		}
		uid = of
	}
	f.observe(began, r, uid)
}

// observe notes a renewal of this process, or the loss of the Lease.
func (f *Fence) observe(began time.Time, r *resourcelock.LeaderElectionRecord, uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread = nil
	if f.mine(r.HolderIdentity) {
		term := name(r, uid)
		if term != f.term || !r.RenewTime.Time.Equal(f.renewed) {
			f.term, f.uid, f.began, f.renewed = term, uid, began, r.RenewTime.Time
		}
		// A third of the lease's time is left for a write that is under way.
		f.valid = time.Duration(r.LeaseDurationSeconds) * time.Second * 2 / 3
		return
	}
	if f.term == "" {
		return
	}
	f.term = ""
	if f.lost != nil && r.HolderIdentity != "" {
		go f.lost(fmt.Errorf("lease %s: %w: %q", f.lease, ErrNotLeading, r.HolderIdentity))
		f.lost = nil
	}
}

// Lock is the lock of an elector, and observes it.
type Lock struct {
	resourcelock.Interface
	fence *Fence
}

// NewLock returns a lock for an elector, and the fence of its process. lost is called once, when another process holds the
// Lease that this one held; it may be nil.
func NewLock(lock resourcelock.Interface, client kubernetes.Interface, namespace, lease string, lost func(error)) (*Lock, *Fence) {
	f := newFence(client, namespace, lease, func(holder string) bool { return holder == lock.Identity() })
	f.lost = lost
	return &Lock{lock, f}, f
}

func newFence(client kubernetes.Interface, namespace, lease string, mine func(holder string) bool) *Fence {
	return &Fence{
		lease: namespace + "/" + lease, now: time.Now, mine: mine,
		// Not by the elector's lock, which is not safe for concurrent use.
		get: func(ctx context.Context) (*resourcelock.LeaderElectionRecord, types.UID, error) {
			found, err := client.CoordinationV1().Leases(namespace).Get(ctx, lease, metav1.GetOptions{})
			if err != nil {
				return nil, "", err
			}
			return resourcelock.LeaseSpecToLeaderElectionRecord(&found.Spec), found.UID, nil
		},
	}
}

// Get implements resourcelock.Interface.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	began := l.fence.now()
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && !l.fence.mine(record.HolderIdentity) {
		l.fence.observe(began, record, "")
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *Lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	began := l.fence.now()
	err := l.Interface.Create(ctx, r)
	if err == nil {
		l.fence.renewedAt(ctx, began, &r)
	}
	return err
}

// Update implements resourcelock.Interface.
func (l *Lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	began := l.fence.now()
	err := l.Interface.Update(ctx, r)
	if err == nil {
		l.fence.renewedAt(ctx, began, &r)
	}
	return err
}

// Follow returns the fence of a process that another process on its machine leads for: Run reads the Lease. Both have the same
// wall clock.
func Follow(client kubernetes.Interface, namespace, lease string, mine func(holder string) bool) *Fence {
	return newFence(client, namespace, lease, mine)
}

// readTimeout is shorter than a renewal is valid, so that a lost answer does not end a term.
const readTimeout = 2 * time.Second

// Run reads the Lease at each interval until ctx ends.
func (f *Fence) Run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		f.Read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Read reads the Lease once. Term reports an error.
func (f *Fence) Read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	began := f.now()
	r, uid, err := f.get(ctx)
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.unread = err
		return
	}
	f.observe(began, r, uid)
}
