package fence

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

type clocks struct {
	start     time.Time
	monotonic time.Duration
}

// elector is what an elector does with its lock, on an API server that is a map.
type elector struct {
	*testing.T
	client *fake.Clientset
	clocks *clocks
	lock   *Lock
	fence  *Fence
	lost   chan error
}

func newElector(t *testing.T, client *fake.Clientset, identity string) *elector {
	e := &elector{T: t, client: client, clocks: &clocks{start: time.Now()}, lost: make(chan error, 1)}
	inner := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"}, Client: client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity}}
	e.lock, e.fence = NewLock(inner, client, "ns", "l", func(err error) { e.lost <- err })
	e.fence.now = func() time.Time { return e.clocks.start.Add(e.clocks.monotonic) }
	return e
}

// renew writes the Lease as its holder.
func (e *elector) renew(transitions int) error {
	wall := e.clocks.start.Round(0).Add(e.clocks.monotonic)
	r := resourcelock.LeaderElectionRecord{HolderIdentity: e.lock.Identity(), LeaseDurationSeconds: 15, LeaderTransitions: transitions,
		RenewTime: metav1.NewTime(wall), AcquireTime: metav1.NewTime(wall)}
	if _, _, err := e.lock.Get(e.Context()); err != nil {
		return e.lock.Create(e.Context(), r)
	}
	return e.lock.Update(e.Context(), r)
}

func (e *elector) term() Term {
	e.Helper()
	t, err := e.fence.Term()
	require.NoError(e, err)
	return t
}

func TestNoElection(t *testing.T) {
	term, err := (*Fence)(nil).Term()
	require.NoError(t, err)
	require.NoError(t, term.Check())
	require.NoError(t, term.Confirm(t.Context()))
	require.Empty(t, term.String())
}

func TestFrozenLeader(t *testing.T) {
	client := fake.NewClientset()
	a, b := newElector(t, client, "a"), newElector(t, client, "b")
	_, err := a.fence.Term()
	require.ErrorIs(t, err, ErrNotLeading, "before the election")
	require.NoError(t, a.renew(0))
	term := a.term()
	require.Equal(t, "a/0/", term.String())
	a.clocks.monotonic = 10 * time.Second
	require.NoError(t, term.Check())
	a.clocks.monotonic += time.Millisecond
	require.ErrorIs(t, term.Check(), ErrStale, "a third of the lease is the margin")

	// The frozen leader goes on, and has not asked yet.
	require.NoError(t, b.renew(1))
	a.clocks.monotonic = 20 * time.Second
	require.ErrorIs(t, term.Check(), ErrStale)
	require.ErrorIs(t, term.Confirm(t.Context()), ErrNotLeading)
	// It asks.
	_, _, err = a.lock.Get(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, term.Check(), ErrNotLeading)
	require.ErrorIs(t, <-a.lost, ErrNotLeading)
	require.NoError(t, b.term().Check())

	// A later term of the same process is another one.
	require.NoError(t, a.renew(2))
	require.NoError(t, a.term().Check())
	require.ErrorIs(t, term.Check(), ErrNotLeading)
}

// A machine that was suspended does not count the time by its monotonic clock, and one that slows its wall clock down does not
// by that one: the longer age counts. Clocks of others do not count.
func TestClocks(t *testing.T) {
	for _, tc := range []struct {
		name      string
		monotonic time.Duration
		wall      time.Duration
		stale     bool
	}{
		{"in step", 9 * time.Second, 9 * time.Second, false},
		{"suspended: the wall clock goes on", 0, 30 * time.Second, true},
		{"the wall clock was set back", 11 * time.Second, -30 * time.Second, true},
		{"the wall clock was set back a little", 9 * time.Second, -30 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newElector(t, fake.NewClientset(), "a")
			require.NoError(t, e.renew(0))
			term := e.term()
			e.fence.began = e.clocks.start.Add(-tc.monotonic)
			e.fence.renewed = e.clocks.start.Round(0).Add(-tc.wall)
			if tc.stale {
				require.ErrorIs(t, term.Check(), ErrStale)
			} else {
				require.NoError(t, term.Check())
			}
		})
	}
}

// The answer to a renewal is lost: the age counts from the last one that is known.
func TestLostRenewal(t *testing.T) {
	client := fake.NewClientset()
	e := newElector(t, client, "a")
	require.NoError(t, e.renew(0))
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection lost")
	})
	e.clocks.monotonic = 11 * time.Second
	require.Error(t, e.renew(0))
	_, err := e.fence.Term()
	require.ErrorIs(t, err, ErrStale)
}

// A leader that gives the Lease back writes nothing more, and is not lost.
func TestReleased(t *testing.T) {
	e := newElector(t, fake.NewClientset(), "a")
	require.NoError(t, e.renew(0))
	term := e.term()
	require.NoError(t, e.lock.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}))
	require.ErrorIs(t, term.Check(), ErrNotLeading)
	require.ErrorIs(t, term.Confirm(t.Context()), ErrNotLeading)
	require.Empty(t, e.lost)
}

func TestFollow(t *testing.T) {
	client := fake.NewClientset()
	f := Follow(client, "ns", "l", func(holder string) bool { return holder == "here_1" || holder == "here_2" })
	now := time.Now()
	f.now = func() time.Time { return now }
	f.Read(t.Context())
	_, err := f.Term()
	require.ErrorContains(t, err, "start kube-scheduler with leader election")
	hold := func(holder string, transitions int32) {
		t.Helper()
		seconds := int32(15)
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder,
			LeaseTransitions: &transitions, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now.Round(0)}}}
		_, err := client.CoordinationV1().Leases("ns").Update(context.Background(), l, metav1.UpdateOptions{})
		if err != nil {
			_, err = client.CoordinationV1().Leases("ns").Create(context.Background(), l, metav1.CreateOptions{})
		}
		require.NoError(t, err)
		f.Read(t.Context())
	}
	hold("here_1", 3)
	term, err := f.Term()
	require.NoError(t, err)
	require.Equal(t, "here_1/3/", term.String())
	now = now.Add(9 * time.Second)
	f.Read(t.Context()) // without a renewal
	now = now.Add(2 * time.Second)
	require.ErrorIs(t, term.Check(), ErrStale)
	hold("here_1", 3)
	require.NoError(t, term.Check())
	hold("there_1", 4)
	require.ErrorIs(t, term.Check(), ErrNotLeading)
	hold("here_2", 5)
	require.ErrorIs(t, term.Check(), ErrNotLeading)
	term, err = f.Term()
	require.NoError(t, err)
	require.Equal(t, "here_2/5/", term.String())
}

// A Lease that was deleted and made again counts its transitions from 0: its terms have other names.
func TestTermOfALeaseThatWasMadeAgain(t *testing.T) {
	client := fake.NewClientset()
	uid := types.UID("first")
	client.PrependReactor("create", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.CreateAction).GetObject().(*coordinationv1.Lease).UID = uid
		return false, nil, nil
	})
	a := newElector(t, client, "a")
	require.NoError(t, a.renew(0))
	first := a.term()
	require.Equal(t, "a/0/first", first.String())
	require.NoError(t, client.CoordinationV1().Leases("ns").Delete(t.Context(), "l", metav1.DeleteOptions{}))
	require.Error(t, first.Confirm(t.Context()))
	uid = "second"
	other := newElector(t, client, "a")
	require.NoError(t, other.renew(0))
	require.Equal(t, "a/0/second", other.term().String())
	require.Error(t, first.Confirm(t.Context()))
}

// The Lease is read for a new term: until that succeeds, this process does not lead.
func TestLeaseThatCannotBeRead(t *testing.T) {
	client := fake.NewClientset()
	a := newElector(t, client, "a")
	broken := true
	a.fence.get = func(ctx context.Context) (*resourcelock.LeaderElectionRecord, types.UID, error) {
		if broken {
			return nil, "", errors.New("no answer")
		}
		return &resourcelock.LeaderElectionRecord{HolderIdentity: "a"}, "uid", nil
	}
	require.NoError(t, a.renew(0))
	_, err := a.fence.Term()
	require.ErrorIs(t, err, ErrNotLeading)
	broken = false
	require.NoError(t, a.renew(0))
	require.Equal(t, "a/0/uid", a.term().String())
}
