//go:build root

package ledger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// mountTmpfs mounts a tmpfs until the test ends. It needs root.
func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("gpuslice-test", dir, "tmpfs", 0, options), "mount a tmpfs: this test needs root")
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// claimUntilRefused claims until it fails, and returns how many went well.
func claimUntilRefused(t *testing.T, ledger *ledger.Ledger, populate func(string) error) (int, error) {
	t.Helper()
	for i := range 1000 {
		c := claimOf(fmt.Sprint("c", i), share(1, 0))
		gpus := map[string]grant.GPU{gpuA: {UUID: gpuA, MemoryMiB: 100_000, CorePercent: 100, Replicas: 10_000}}
		if _, err := ledger.Claim(background, c, gpus, populate); err != nil {
			return i, err
		}
	}
	require.Fail(t, "the disk never filled up")
	return 0, nil
}

// TestFullDisk fills the ledger's disk, by data and by files, at every stage of
// a claim: each size ends in another one.
func TestFullDisk(t *testing.T) {
	for _, options := range []string{"size=48k", "size=52k", "size=56k", "size=60k", "nr_inodes=20", "nr_inodes=21", "nr_inodes=22", "nr_inodes=23"} {
		t.Run(options, func(t *testing.T) {
			dir := mountTmpfs(t, options)
			store := openLedger(t, dir)
			n, err := claimUntilRefused(t, store, writeFiles)
			require.ErrorIs(t, err, unix.ENOSPC)
			assert.ErrorContains(t, err, fmt.Sprintf("pod ns/pod-c%d", n))
			require.Positive(t, n)

			for _, l := range []*ledger.Ledger{store, openLedger(t, dir)} {
				s := snapshot(t, l)
				requireConsistent(t, dir, s)
				require.Len(t, s.Claims(), n)
			}
			require.NoError(t, store.Release(background, "c0"), "a full disk must not keep a claim in force")
			require.NoError(t, store.Remove(background, "c0"))
			_, err = store.Claim(background, claimOf("again", share(1, 0)), testGPUs(), writeFiles)
			require.NoError(t, err, "there is space again")
			report, err := store.Reconcile(background, ledger.OwnerNRI, nil)
			require.NoError(t, err)
			assert.Empty(t, report.Leftovers)
			assert.Empty(t, dirs(t, dir))
		})
	}
}

func TestFullDiskFromTheStart(t *testing.T) {
	dir := mountTmpfs(t, "size=16k")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 16<<10), 0o644))
	ledger := openLedger(t, dir)
	_, err := ledger.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, os.Remove(filepath.Join(dir, "filler")))
	_, err = ledger.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), nil)
	require.NoError(t, err)
}

func TestReadOnlyDirectory(t *testing.T) {
	dir := mountTmpfs(t, "size=1m")
	_, err := openLedger(t, dir).Claim(background, claimOf("c1", share(1000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)

	readOnly := t.TempDir()
	require.NoError(t, unix.Mount(dir, readOnly, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(readOnly, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", readOnly, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err = ledger.Open(readOnly)
	require.ErrorIs(t, err, unix.EROFS)
	assert.ErrorContains(t, err, readOnly)
}

// TestDirectoryThatCannotChange: the directory of an open ledger refuses every change.
func TestDirectoryThatCannotChange(t *testing.T) {
	dir := mountTmpfs(t, "size=1m")
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("c1", share(1000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	// Only the entries, because the lock and the generation are open for writing.
	containers := filepath.Join(dir, "containers")
	require.NoError(t, unix.Mount(containers, containers, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", containers, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	writable := func() { assert.NoError(t, unix.Unmount(containers, unix.MNT_DETACH)) }

	_, err = store.Claim(background, claimOf("c2", share(1000, 1)), testGPUs(), writeFiles)
	assert.ErrorIs(t, err, unix.EROFS)
	assert.ErrorIs(t, store.Release(background, "c1"), unix.EROFS)
	assert.ErrorIs(t, store.Remove(background, "c1"), unix.EROFS)
	_, err = store.Reconcile(background, ledger.OwnerNRI, nil)
	assert.ErrorIs(t, err, unix.EROFS)
	assert.EqualValues(t, 1000, snapshot(t, store).GPUs[gpuA].MemoryMiB, "what could not be removed counts")
	writable()
	require.NoError(t, store.Remove(background, "c1"))
	assert.Empty(t, dirs(t, dir))
}
