package ledger_test

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// of makes a claim of requests of ResourceClaims.
func of(c ledger.Claim, requests ...string) ledger.Claim {
	c.Source, c.ResourceClaims = grant.SourceResourceClaim, requests
	return c
}

// commonOf makes the claim of a container of pod-<id>.
func commonOf(id string, share grant.Share, requests ...string) ledger.Claim {
	return of(claimOf(id, share), requests...).Common()
}

func membersOf(t *testing.T, l *ledger.Ledger) map[string][]string {
	all := map[string][]string{}
	for _, c := range snapshot(t, l).Claims() {
		all[c.ContainerID] = []string{}
		for _, m := range c.Members {
			all[c.ContainerID] = append(all[c.ContainerID], m.ContainerID)
		}
	}
	return all
}

// Containers with the same requests have one claim in common, for every process that opens the ledger: from the first
// container to the last.
func TestCommonClaim(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	share := grant.Share{UUID: gpuA, MemoryMiB: testGPUs()[gpuA].MemoryMiB, CorePercent: 60}
	populated := 0
	claim := func(c ledger.Claim) error {
		_, err := openLedger(t, dir).Claim(ctx, c, testGPUs(), func(string) error { populated++; return nil })
		return err
	}
	l := openLedger(t, dir)
	id := ledger.CommonID([]string{"a.gpu", "a.other"})
	require.Equal(t, id, ledger.CommonID([]string{"a.other", "a.gpu"}), "in any order")
	require.NoError(t, claim(commonOf("one", share, "a.gpu", "a.other")))
	require.NoError(t, claim(commonOf("one", share, "a.gpu", "a.other")), "idempotent")
	require.NoError(t, claim(commonOf("two", share, "a.gpu", "a.other")), "another pod")
	sidecar := of(claimOf("three", share), "a.gpu", "a.other")
	sidecar.PodUID, sidecar.Container = "uid-one", "sidecar"
	require.NoError(t, claim(sidecar.Common()))
	require.Equal(t, map[string][]string{id: {"one", "two", "three"}}, membersOf(t, l))
	require.Equal(t, ledger.Usage{MemoryMiB: share.MemoryMiB, CorePercent: 60, Replicas: 1}, snapshot(t, l).GPUs[gpuA], "it counts once")
	require.Equal(t, 1, populated)
	require.ErrorIs(t, claim(commonOf("four", grant.Share{UUID: gpuA, MemoryMiB: 1}, "a.gpu", "a.other")), ledger.ErrConflict)
	require.ErrorIs(t, claim(commonOf("four", grant.Share{UUID: gpuB, MemoryMiB: 1}, "a.other")), ledger.ErrResourceClaimInUse)
	require.ErrorIs(t, claim(commonOf("four", grant.Share{UUID: gpuB, MemoryMiB: 1}, "a.other", "b.gpu")), ledger.ErrResourceClaimInUse)

	again := of(claimOf("five", share), "a.gpu", "a.other")
	again.PodUID = "uid-one"
	require.NoError(t, claim(again.Common()), "the next attempt of the first container, before the end of that is reported")
	require.Equal(t, map[string][]string{id: {"two", "three", "five"}}, membersOf(t, l))
	require.NoError(t, l.Release(ctx, "one"))
	require.NoError(t, l.Remove(ctx, "one"))
	require.NoError(t, l.Release(ctx, "three"))
	require.NoError(t, l.Remove(ctx, "two"))
	require.Equal(t, map[string][]string{id: {"five"}}, membersOf(t, openLedger(t, dir)))
	require.DirExists(t, l.Dir(id))
	require.NoError(t, l.Release(ctx, "five"))
	require.Empty(t, membersOf(t, l))
	require.Empty(t, snapshot(t, l).GPUs)
	require.DirExists(t, l.Dir(id), "the last container can still map its files")
	require.NoError(t, claim(commonOf("six", share, "a.gpu", "a.other")))
	require.Equal(t, 2, populated, "new files")
	require.NoError(t, l.Remove(ctx, "five"), "its directory is another's now")
	require.Equal(t, map[string][]string{id: {"six"}}, membersOf(t, l))
	require.NoError(t, l.Release(ctx, "six"))
	require.NoError(t, l.Remove(ctx, "six"))
	require.NoDirExists(t, l.Dir(id))
	require.NoError(t, claim(commonOf("four", share, "a.other", "b.gpu")))
	unplaced, err := l.Unplaced(ctx)
	require.NoError(t, err)
	require.Equal(t, ledger.Usage{MemoryMiB: share.MemoryMiB, CorePercent: 60, Replicas: 1}, unplaced[gpuA], "gpuslice's scheduler does not know them")
	for request, want := range map[string]bool{"a.gpu": false, "a.other": true, "b.gpu": true} {
		used, err := l.InUse(ctx, []string{request})
		require.NoError(t, err)
		require.Equal(t, want, used, request)
	}
}

// An agent that was away finds which containers of a claim are gone.
func TestReconcileOfACommonClaim(t *testing.T) {
	ctx := context.Background()
	share := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}
	id := ledger.CommonID([]string{"a.gpu"})
	for description, test := range map[string]struct {
		live, running []string
		want          []string
	}{
		"all are listed":                 {live: []string{"one", "two", "three"}, want: []string{"one", "two", "three"}},
		"the first one is gone":          {live: []string{"three", "two"}, want: []string{"two", "three"}},
		"one is not listed, and runs":    {live: []string{"three"}, running: []string{"one"}, want: []string{"one", "three"}},
		"one mounts it and is no member": {live: []string{id}, want: []string{}},
		"all are gone":                   {},
	} {
		t.Run(description, func(t *testing.T) {
			l := openLedger(t, t.TempDir())
			for _, c := range []string{"one", "two", "three"} {
				_, err := l.Claim(ctx, commonOf(c, share, "a.gpu"), testGPUs(), nil)
				require.NoError(t, err)
			}
			_, err := l.Reconcile(ctx, ledger.OwnerNRI, test.live, ledger.WithMemberLiveness(func(c string) bool { return slices.Contains(test.running, c) }))
			require.NoError(t, err)
			want := map[string][]string{id: test.want}
			if test.want == nil {
				want = map[string][]string{}
				require.NoDirExists(t, l.Dir(id))
			}
			require.Equal(t, want, membersOf(t, l))
		})
	}
}

// After a loss, the containers of a claim restore it once.
func TestRestoreACommonClaim(t *testing.T) {
	ctx := context.Background()
	l := openLedger(t, t.TempDir())
	share := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}
	require.NoError(t, l.Block(ctx, "two", ledger.OwnerNRI, "a test"))
	for _, c := range []string{"one", "two"} {
		_, err := l.Restore(ctx, commonOf(c, share, "a.gpu"), testGPUs(), nil)
		require.NoError(t, err)
	}
	require.Equal(t, map[string][]string{ledger.CommonID([]string{"a.gpu"}): {"one", "two"}}, membersOf(t, l))
	require.Len(t, snapshot(t, l).Entries, 1, "nothing blocks")
	require.Equal(t, ledger.Usage{MemoryMiB: 1000, CorePercent: 10, Replicas: 1}, snapshot(t, l).GPUs[gpuA])
}

// A claim restored by an earlier attempt keeps the later one: the runtime lists both until the earlier one is removed.
func TestRestoreOfAnEarlierAttempt(t *testing.T) {
	ctx := context.Background()
	share := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}
	id := ledger.CommonID([]string{"a.gpu"})
	earlier, later := commonOf("earlier", share, "a.gpu"), of(claimOf("later", share), "a.gpu")
	later.PodUID = earlier.PodUID
	later = later.Common()
	for description, test := range map[string]struct {
		lost  bool
		order []ledger.Claim
	}{
		"the earlier one is no member": {order: []ledger.Claim{earlier}},
		"the ledger is lost":           {lost: true, order: []ledger.Claim{earlier, later}},
		"in another order":             {lost: true, order: []ledger.Claim{later, earlier}},
	} {
		t.Run(description, func(t *testing.T) {
			l := openLedger(t, t.TempDir())
			for _, c := range []ledger.Claim{earlier, later} {
				_, err := l.Claim(ctx, c, testGPUs(), nil)
				require.NoError(t, err)
			}
			require.Equal(t, map[string][]string{id: {"later"}}, membersOf(t, l))
			if test.lost {
				require.NoError(t, os.RemoveAll(l.Dir(id)))
			}
			_, err := l.Reconcile(ctx, ledger.OwnerNRI, []string{"earlier", "later", id})
			require.NoError(t, err)
			for _, c := range test.order {
				_, err := l.Restore(ctx, c, testGPUs(), nil)
				require.NoError(t, err)
			}
			require.NoError(t, l.Remove(ctx, "earlier"))
			require.Equal(t, map[string][]string{id: {"later"}}, membersOf(t, l))
			require.Equal(t, ledger.Usage{MemoryMiB: 1000, CorePercent: 10, Replicas: 1}, snapshot(t, l).GPUs[gpuA])
		})
	}
}

func TestMalformedCommonClaims(t *testing.T) {
	l := openLedger(t, t.TempDir())
	share := grant.Share{UUID: gpuA, MemoryMiB: 1000}
	for description, change := range map[string]func(*ledger.Claim){
		"another claim's ID":     func(c *ledger.Claim) { c.ContainerID = ledger.CommonID([]string{"b.gpu"}) },
		"no ResourceClaim":       func(c *ledger.Claim) { c.ResourceClaims = nil },
		"members of a container": func(c *ledger.Claim) { c.ContainerID = "one" },
		"a container twice":      func(c *ledger.Claim) { c.Members = append(c.Members, c.Members...) },
		"a path as container":    func(c *ledger.Claim) { c.Members[0].ContainerID = "../x" },
		"no name":                func(c *ledger.Claim) { c.Members[0].Container = "" },
	} {
		c := commonOf("one", share, "a.gpu")
		change(&c)
		_, err := l.Claim(context.Background(), c, testGPUs(), nil)
		require.ErrorIs(t, err, grant.ErrMalformed, description)
	}
}

func TestRoom(t *testing.T) {
	ctx := context.Background()
	l := openLedger(t, t.TempDir())
	whole := grant.Share{UUID: gpuA, MemoryMiB: testGPUs()[gpuA].MemoryMiB}
	room := func(share grant.Share, requests ...string) error {
		return l.Room(ctx, []grant.Share{share}, requests, testGPUs())
	}
	require.NoError(t, room(whole, "a.gpu"))
	_, err := l.Claim(ctx, of(claimOf("one", whole), "a.gpu"), testGPUs(), nil)
	require.NoError(t, err)
	require.NoError(t, room(whole, "a.gpu"), "it is the same")
	require.ErrorIs(t, room(whole, "b.gpu"), grant.ErrOverbooked)
	require.ErrorIs(t, room(grant.Share{UUID: gpuA, MemoryMiB: 1}), grant.ErrOverbooked)
	require.ErrorIs(t, room(grant.Share{UUID: "GPU-00000000-0000-4000-8000-000000000000", MemoryMiB: 1}), grant.ErrUnknownGPU)
	require.NoError(t, l.Release(ctx, "one"))
	require.NoError(t, room(whole, "b.gpu"))
	require.NoError(t, l.Block(ctx, "unknown", ledger.OwnerNRI, "a test"))
	require.ErrorIs(t, room(whole, "b.gpu"), ledger.ErrBlocked)
}

// An allocation of Kubernetes does not change.
func TestResourceClaimIsNotResized(t *testing.T) {
	ctx := context.Background()
	l := openLedger(t, t.TempDir())
	share := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}
	_, err := l.Claim(ctx, of(claimOf("one", share), "a.gpu"), testGPUs(), nil)
	require.NoError(t, err)
	for _, memory := range []int64{1001, 999} {
		_, err = l.Resize(ctx, "one", []grant.Share{{UUID: gpuA, MemoryMiB: memory, CorePercent: 10}}, testGPUs(), func(string, ledger.Claim) error { return nil })
		require.ErrorIs(t, err, grant.ErrMalformed)
		require.ErrorContains(t, err, "ResourceClaim")
	}
	snapshot, err := l.Snapshot(ctx)
	require.NoError(t, err)
	require.Equal(t, []grant.Share{share}, snapshot.Claims()[0].Shares)
}
