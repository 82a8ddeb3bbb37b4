package extender

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election is a Lease.
type Election struct {
	Namespace, Name, Identity string

	// renew is how long the Lease is tried to be kept; tests are less patient.
	renew time.Duration
}

var (
	errNotLeading = errors.New("another replica answers")
	errLost       = errors.New("the lease of the leader is lost")
)

// A replica's way: it waits, leads, and ends.
const (
	waiting = iota
	leading
	stopped
)

// leader is a replica's part in an election.
type leader struct {
	state atomic.Int32
	lock  resourcelock.Interface
	end   context.CancelFunc
	ended chan struct{}
}

// leads says whether the Lease is ours.
func (l *leader) leads() bool { return l.state.Load() == leading }

// elect takes part in the election until release, and calls lost when the Lease is ours no more:
// what is reserved here another one doesn't know.
//
// client-go's own release is not used: it gives the Lease away before it says that it is lost, while binds
// are still under way.
func (c Config) elect(lost func(error)) (*leader, error) {
	l := &leader{ended: make(chan struct{}), lock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: c.Election.Namespace, Name: c.Election.Name},
		Client:     c.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.Election.Identity},
	}}
	renew := cmp.Or(c.Election.renew, 10*time.Second)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l.lock, Name: c.Election.Name,
		LeaseDuration: renew + renew/2, RenewDeadline: renew, RetryPeriod: renew / 5,
		Callbacks: leaderelection.LeaderCallbacks{
			// It is called in a goroutine of its own, and may come last.
			OnStartedLeading: func(context.Context) { l.state.CompareAndSwap(waiting, leading) },
			OnStoppedLeading: func() {
				l.state.Store(stopped)
				lost(errLost)
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	l.end = end
	go func() {
		defer close(l.ended)
		elector.Run(ctx)
	}()
	return l, nil
}

// release ends the part in the election. A Lease that was kept to the end is given to
// whoever waits for it; one that was lost is not touched: it ends by itself. To be called once nothing that
// the Lease is for is under way any more.
func (l *leader) release() error {
	kept := l.leads()
	l.end()
	<-l.ended
	if !kept {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	is, _, err := l.lock.Get(ctx)
	if err == nil && is.HolderIdentity == l.lock.Identity() {
		now := metav1.Now()
		err = l.lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: is.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	return nil
}
