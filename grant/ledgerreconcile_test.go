package grant_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
)

// aliveOnly is a liveness that knows the containers by the names of their directories,
// and notes who was asked for.
func aliveOnly(asked *[]string, alive ...string) grant.ReconcileOption {
	return grant.WithLiveness(func(dir string) bool {
		*asked = append(*asked, filepath.Base(dir))
		for _, id := range alive {
			if filepath.Base(dir) == id {
				return true
			}
		}
		return false
	})
}

// TestReconcileKeepsALiveContainerThatIsNotListed: containerd lists no container
// whose shim it can't reach, and that goes on using its GPU.
func TestReconcileKeepsALiveContainerThatIsNotListed(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	for _, id := range []string{"listed", "unknown", "gone", "stopped", "other"} {
		c := claimOf(id, share(20_000, 1))
		if id == "other" {
			c.Owner = grant.OwnerRuntime
		}
		_, err := ledger.Claim(background, c, testGPUs(), writeFiles)
		require.NoError(t, err)
	}
	require.NoError(t, ledger.Release(background, "stopped"))

	var asked []string
	report, err := ledger.Reconcile(background, grant.OwnerNRI, []string{"listed"}, aliveOnly(&asked, "unknown", "stopped", "other"))
	require.NoError(t, err)
	assert.Equal(t, &grant.Report{Kept: []string{"listed"}, Unlisted: []string{"unknown"}, Removed: []string{"gone", "stopped"}}, report)
	assert.Equal(t, []string{"gone", "unknown"}, asked, "only of entries that count")
	assert.EqualValues(t, 60_000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
	_, err = ledger.Claim(background, claimOf("new", share(40_001, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked, "its GPU is not free")

	report, err = ledger.Reconcile(background, grant.OwnerNRI, []string{"listed"}, aliveOnly(&asked))
	require.NoError(t, err)
	assert.Equal(t, []string{"unknown"}, report.Removed, "when its processes are gone")
}

// TestCorruptRecordOfAContainerThatIsGone must not block the node for ever.
func TestCorruptRecordOfAContainerThatIsGone(t *testing.T) {
	var asked []string
	tests := []struct {
		description string
		live        []string
		options     []grant.ReconcileOption
		removed     bool
	}{
		{"gone", nil, []grant.ReconcileOption{grant.ForWholeNode(), aliveOnly(&asked)}, true},
		{"listed", []string{"c1"}, []grant.ReconcileOption{grant.ForWholeNode(), aliveOnly(&asked)}, false},
		{"alive", nil, []grant.ReconcileOption{grant.ForWholeNode(), aliveOnly(&asked, "c1")}, false},
		{"one owner's reconciliation", nil, []grant.ReconcileOption{aliveOnly(&asked)}, false},
		{"nobody can tell whether it is alive", nil, []grant.ReconcileOption{grant.ForWholeNode()}, false},
	}
	for _, test := range tests {
		for name, hurt := range damage {
			t.Run(test.description+", "+name, func(t *testing.T) {
				dir := t.TempDir()
				_, err := openLedger(t, dir).Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
				require.NoError(t, err)
				require.NoError(t, hurt(filepath.Join(dir, "containers", "c1", "grant.json")))
				ledger := openLedger(t, dir)
				report, err := ledger.Reconcile(background, grant.OwnerNRI, test.live, test.options...)
				require.NoError(t, err)
				_, claimed := ledger.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), nil)
				if test.removed {
					assert.Equal(t, &grant.Report{CorruptRemoved: []string{"c1"}}, report)
					require.NoError(t, claimed)
					return
				}
				assert.Equal(t, &grant.Report{Corrupt: []string{"c1"}}, report)
				require.ErrorIs(t, claimed, grant.ErrCorrupt)
			})
		}
	}
}

// TestUnreadableReleasedRecord counts for nothing, and is nobody's: only who
// speaks for the node takes its directory away.
func TestUnreadableReleasedRecord(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	_, err := ledger.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, ledger.Release(background, "c1"))
	require.NoError(t, os.Truncate(filepath.Join(ledger.Dir("c1"), "released.json"), 3))
	ledger = openLedger(t, dir)
	_, err = ledger.Reconcile(background, grant.OwnerNRI, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"c1"}, dirs(t, dir))
	report, err := ledger.Reconcile(background, grant.OwnerNRI, nil, grant.ForWholeNode())
	require.NoError(t, err)
	assert.Equal(t, []string{"c1"}, report.Removed)
	assert.Empty(t, dirs(t, dir))
}

// TestReconcileGoesOnAfterAFailure: a directory that can't be taken away, here for it
// is mounted on, keeps no other from being handled.
func TestReconcileGoesOnAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	for _, id := range []string{"c1", "c2", "c3", "c4"} {
		_, err := ledger.Claim(background, claimOf(id, share(10_000, 1)), testGPUs(), writeFiles)
		require.NoError(t, err)
	}
	hidden := filepath.Join(dir, "containers", ".old-x")
	require.NoError(t, os.Mkdir(hidden, 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "containers", ".new-y"), 0o755))
	busy := []string{ledger.Dir("c1"), ledger.Dir("c3"), hidden}
	for _, dir := range busy {
		require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""), "bind mount: this test needs root")
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // it is unmounted where the test went well
	}
	report, err := ledger.Reconcile(background, grant.OwnerNRI, nil)
	require.ErrorIs(t, err, unix.EBUSY)
	for _, name := range []string{"container c1", "container c3", ".old-x"} {
		assert.ErrorContains(t, err, name)
	}
	assert.Equal(t, &grant.Report{Removed: []string{"c2", "c4"}, Failed: []string{"c1", "c3"}, Leftovers: []string{".new-y"}}, report)
	for _, l := range []*grant.Ledger{ledger, openLedger(t, dir)} {
		assert.Equal(t, map[string]grant.State{"c1": grant.StateActive, "c3": grant.StateActive}, states(snapshot(t, l)))
	}

	for _, dir := range busy {
		require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	}
	report, err = ledger.Reconcile(background, grant.OwnerNRI, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"c1", "c3"}, report.Removed)
	assert.Empty(t, dirs(t, dir))
}
