package ledger_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

func TestCordon(t *testing.T) {
	dir := t.TempDir()
	store, other := openLedger(t, dir), openLedger(t, dir)
	first := claimOf("a1", share(1000, 10))
	_, err := other.Claim(background, first, testGPUs(), nil)
	require.NoError(t, err)

	require.NoError(t, store.Cordon(background, gpuA, gpuB))
	require.NoError(t, store.Cordon(background, gpuA)) // twice is once
	cordoned, err := ledger.Cordoned(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{gpuA, gpuB}, cordoned)

	_, err = other.Claim(background, claimOf("c1", share(1000, 10)), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrCordoned)
	assert.ErrorContains(t, err, "gpuslice uncordon "+gpuA)
	_, err = other.Claim(background, claimOf("c2", grant.Share{UUID: gpuC, MemoryMiB: 1}), testGPUs(), nil)
	require.NoError(t, err, "other GPUs are given out")
	_, err = other.Claim(background, first, testGPUs(), nil)
	require.NoError(t, err, "claims stay")
	again := first
	again.ContainerID = "a2"
	require.NoError(t, other.Release(background, "a1"))
	_, err = other.Claim(background, again, testGPUs(), nil)
	require.NoError(t, err, "a container that restarts in its pod has been there before")

	require.NoError(t, store.Uncordon(background, gpuA, gpuX))
	_, err = other.Claim(background, claimOf("c1", share(1000, 10)), testGPUs(), nil)
	require.NoError(t, err)
	require.NoError(t, store.Uncordon(background, gpuB))
	assert.NoFileExists(t, filepath.Join(dir, "cordoned"))
}

// A GPU in MIG mode is had by its MIG devices: its cordon is theirs.
func TestCordonOfMIGDevices(t *testing.T) {
	const first, second, other = "MIG-00000001-5151-4000-8000-00000000000a", "MIG-00000002-5151-4000-8000-00000000000a", "MIG-00000003-5151-4000-8000-00000000000a"
	gpus := map[string]grant.GPU{
		first:  {UUID: first, MemoryMiB: 1000, CorePercent: 100, Replicas: 1, Parent: gpuA},
		second: {UUID: second, MemoryMiB: 1000, CorePercent: 100, Replicas: 1, Parent: gpuA},
		other:  {UUID: other, MemoryMiB: 1000, CorePercent: 100, Replicas: 1, Parent: gpuB},
	}
	dir := t.TempDir()
	store := openLedger(t, dir)
	claim := func(id, uuid string) error {
		_, err := store.Claim(background, claimOf(id, grant.Share{UUID: uuid, MemoryMiB: 1000, CorePercent: 100}), gpus, nil)
		return err
	}
	require.NoError(t, store.Cordon(background, gpuA))
	err := claim("c1", first)
	require.ErrorIs(t, err, ledger.ErrCordoned)
	assert.ErrorContains(t, err, "GPU "+gpuA+" (of MIG device "+first+")")
	assert.ErrorContains(t, err, "gpuslice uncordon "+gpuA)
	require.NoError(t, claim("c3", other), "another GPU's")

	require.NoError(t, store.Uncordon(background, gpuA))
	require.NoError(t, store.Cordon(background, first))
	err = claim("c1", first)
	require.ErrorIs(t, err, ledger.ErrCordoned)
	assert.ErrorContains(t, err, "gpuslice uncordon "+first)
	require.NoError(t, claim("c2", second), "only one device")
}

func TestCordonsThatCanNotBeRead(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.ErrorIs(t, ledger.Cordon(background, "GPU-0"), grant.ErrMalformed)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cordoned"), []byte("GPU 0\n"), 0o644))
	_, err := ledger.Claim(background, claimOf("c1", share(1000, 10)), testGPUs(), nil)
	require.ErrorContains(t, err, "fix or remove the file", "it is not known which GPUs are meant")
}

// A cordoned GPU takes no other container by a claim in common: only the next attempt of one that has it.
func TestCordonOfACommonClaim(t *testing.T) {
	ctx := background
	share := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}
	id := ledger.CommonID([]string{"a.gpu"})
	l := openLedger(t, t.TempDir())
	claim := func(container, pod, name string) error {
		c := of(claimOf(container, share), "a.gpu")
		c.PodUID, c.Container = pod, name
		_, err := l.Claim(ctx, c.Common(), testGPUs(), nil)
		return err
	}
	require.NoError(t, claim("one", "uid-1", "main"))
	require.NoError(t, claim("two", "uid-2", "main"))
	require.NoError(t, l.Cordon(ctx, gpuA))
	require.ErrorIs(t, claim("other-pod", "uid-3", "main"), ledger.ErrCordoned)
	require.ErrorIs(t, claim("sidecar", "uid-1", "sidecar"), ledger.ErrCordoned)
	require.NoError(t, claim("one", "uid-1", "main"), "it is there")
	require.NoError(t, claim("again", "uid-2", "main"), "a container that restarts in its pod")
	require.Equal(t, map[string][]string{id: {"one", "again"}}, membersOf(t, l))
	require.NoError(t, l.Release(ctx, "one"))
	require.ErrorIs(t, claim("restarted", "uid-1", "main"), ledger.ErrCordoned, "its end is known, and others have the share")
	_, err := l.Restore(ctx, commonOf("runs", share, "a.gpu"), testGPUs(), nil)
	require.NoError(t, err)
	require.NoError(t, l.Release(ctx, "runs"))
	require.NoError(t, l.Release(ctx, "again"))
	require.NoError(t, claim("last", "uid-2", "main"), "the last container restarts")
	require.ErrorIs(t, claim("other-pod", "uid-3", "main"), ledger.ErrCordoned)
	require.NoError(t, l.Uncordon(ctx, gpuA))
	require.NoError(t, claim("other-pod", "uid-3", "main"))
}
