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

// Election is the Lease by which replicas elect a leader.
type Election struct {
	Namespace, Name, Identity string

	renew time.Duration // renew deadline; 0: 10 s
}

var (
	errNotLeading = errors.New("another replica is the leader")
	errLost       = errors.New("lost the leader election lease")
)

const (
	waiting = iota
	leading
	stopped
)

type leader struct {
	state atomic.Int32
	lock  resourcelock.Interface
	end   context.CancelFunc
	ended chan struct{}
}

func (l *leader) leads() bool { return l.state.Load() == leading }

// elect joins the election until release. It calls lost when another replica may lead, which does
// not know the reservations of this one.
//
// client-go's ReleaseOnCancel is not used: it releases the Lease while binds are in progress.
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
			// It can be called after OnStoppedLeading.
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

// release leaves the election. Call it when no call is in progress.
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
		return fmt.Errorf("release the leader election lease: %w", err)
	}
	return nil
}
