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

// aliveOnly is a liveness that knows the containers by the names of their directories,
// and records the calls.
func aliveOnly(asked *[]string, alive ...string) ledger.ReconcileOption {
	return ledger.WithLiveness(func(dir string) bool {
		*asked = append(*asked, filepath.Base(dir))
		for _, id := range alive {
			if filepath.Base(dir) == id {
				return true
			}
		}
		return false
	})
}

// TestReconcileKeepsALiveContainerThatIsNotListed: containerd does not list a container if it can't reach its
// shim. The container continues to use its GPU.
func TestReconcileKeepsALiveContainerThatIsNotListed(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	for _, id := range []string{"listed", "unknown", "gone", "stopped", "other"} {
		c := claimOf(id, share(20_000, 1))
		if id == "other" {
			c.Owner = ledger.OwnerRuntime
		}
		_, err := store.Claim(background, c, testGPUs(), writeFiles)
		require.NoError(t, err)
	}
	require.NoError(t, store.Release(background, "stopped"))

	var asked []string
	report, err := store.Reconcile(background, ledger.OwnerNRI, []string{"listed"}, aliveOnly(&asked, "unknown", "stopped", "other"))
	require.NoError(t, err)
	assert.Equal(t, &ledger.Report{Kept: []string{"listed"}, Unlisted: []string{"unknown"}, Removed: []string{"gone", "stopped"}}, report)
	assert.Equal(t, []string{"gone", "unknown"}, asked, "only of entries that count")
	assert.EqualValues(t, 60_000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
	_, err = store.Claim(background, claimOf("new", share(40_001, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked, "its GPU is not free")

	report, err = store.Reconcile(background, ledger.OwnerNRI, []string{"listed"}, aliveOnly(&asked))
	require.NoError(t, err)
	assert.Equal(t, []string{"unknown"}, report.Removed, "when its processes are gone")
}

// TestCorruptRecordOfAContainerThatIsGone must not block the node for ever.
func TestCorruptRecordOfAContainerThatIsGone(t *testing.T) {
	var asked []string
	tests := []struct {
		description string
		live        []string
		options     []ledger.ReconcileOption
		removed     bool
	}{
		{"gone", nil, []ledger.ReconcileOption{ledger.ForWholeNode(), aliveOnly(&asked)}, true},
		{"listed", []string{"c1"}, []ledger.ReconcileOption{ledger.ForWholeNode(), aliveOnly(&asked)}, false},
		{"alive", nil, []ledger.ReconcileOption{ledger.ForWholeNode(), aliveOnly(&asked, "c1")}, false},
		{"one owner's reconciliation", nil, []ledger.ReconcileOption{aliveOnly(&asked)}, false},
		{"it is not known whether it is alive", nil, []ledger.ReconcileOption{ledger.ForWholeNode()}, false},
	}
	for _, test := range tests {
		for name, hurt := range damage {
			t.Run(test.description+", "+name, func(t *testing.T) {
				dir := t.TempDir()
				_, err := openLedger(t, dir).Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
				require.NoError(t, err)
				require.NoError(t, hurt(filepath.Join(dir, "containers", "c1", "grant.json")))
				store := openLedger(t, dir)
				report, err := store.Reconcile(background, ledger.OwnerNRI, test.live, test.options...)
				require.NoError(t, err)
				_, claimed := store.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), nil)
				if test.removed {
					assert.Equal(t, &ledger.Report{CorruptRemoved: []string{"c1"}}, report)
					require.NoError(t, claimed)
					return
				}
				assert.Equal(t, &ledger.Report{Corrupt: []string{"c1"}}, report)
				require.ErrorIs(t, claimed, ledger.ErrCorrupt)
			})
		}
	}
}

// TestUnreadableReleasedRecord: the record does not count, and has no owner. Only the reconciliation of the
// whole node removes its directory.
func TestUnreadableReleasedRecord(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, store.Release(background, "c1"))
	require.NoError(t, os.Truncate(filepath.Join(store.Dir("c1"), "released.json"), 3))
	store = openLedger(t, dir)
	_, err = store.Reconcile(background, ledger.OwnerNRI, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"c1"}, dirs(t, dir))
	report, err := store.Reconcile(background, ledger.OwnerNRI, nil, ledger.ForWholeNode())
	require.NoError(t, err)
	assert.Equal(t, []string{"c1"}, report.Removed)
	assert.Empty(t, dirs(t, dir))
}
