package ledger_test

import (
	"context"
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

// A request of a ResourceClaim is one container's, for every process that opens the ledger.
func TestResourceClaimOfOneContainer(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	l := openLedger(t, dir)
	share := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}
	claim := func(c ledger.Claim) error { _, err := openLedger(t, dir).Claim(ctx, c, testGPUs(), nil); return err }
	require.NoError(t, claim(of(claimOf("one", share), "a.gpu", "a.other")))
	require.NoError(t, claim(of(claimOf("one", share), "a.gpu", "a.other")), "idempotent")
	require.ErrorIs(t, claim(of(claimOf("two", share), "a.other", "b.gpu")), ledger.ErrResourceClaimInUse)
	require.NoError(t, claim(of(claimOf("three", share), "a.third", "b.gpu")))
	for request, want := range map[string]bool{"a.gpu": true, "b.gpu": true, "c.gpu": false} {
		used, err := l.InUse(ctx, []string{request})
		require.NoError(t, err)
		require.Equal(t, want, used, request)
	}
	used, err := l.InUse(ctx, nil)
	require.NoError(t, err)
	require.False(t, used)

	again := of(claimOf("four", share), "a.gpu", "a.other")
	again.PodUID = "uid-one"
	require.NoError(t, claim(again), "the next attempt of the container")
	require.ErrorIs(t, claim(of(claimOf("two", share), "a.other")), ledger.ErrResourceClaimInUse)
	require.NoError(t, l.Release(ctx, "four"))
	require.NoError(t, claim(of(claimOf("two", share), "a.other")))
	unplaced, err := l.Unplaced(ctx)
	require.NoError(t, err)
	require.Equal(t, ledger.Usage{MemoryMiB: 2000, CorePercent: 20, Replicas: 2}, unplaced[gpuA], "gpuslice's scheduler does not know them")
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
