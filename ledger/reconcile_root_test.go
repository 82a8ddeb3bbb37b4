//go:build root

package ledger_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger"
)

// TestReconcileGoesOnAfterAFailure: a directory that can't be taken away, here for it
// is mounted on, keeps no other from being handled.
func TestReconcileGoesOnAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	for _, id := range []string{"c1", "c2", "c3", "c4"} {
		_, err := store.Claim(background, claimOf(id, share(10_000, 1)), testGPUs(), writeFiles)
		require.NoError(t, err)
	}
	hidden := filepath.Join(dir, "containers", ".old-x")
	require.NoError(t, os.Mkdir(hidden, 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "containers", ".new-y"), 0o755))
	busy := []string{store.Dir("c1"), store.Dir("c3"), hidden}
	for _, dir := range busy {
		require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""), "bind mount: this test needs root")
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // it is unmounted where the test went well
	}
	report, err := store.Reconcile(background, ledger.OwnerNRI, nil)
	require.ErrorIs(t, err, unix.EBUSY)
	for _, name := range []string{"container c1", "container c3", ".old-x"} {
		assert.ErrorContains(t, err, name)
	}
	assert.Equal(t, &ledger.Report{Removed: []string{"c2", "c4"}, Failed: []string{"c1", "c3"}, Leftovers: []string{".new-y"}}, report)
	for _, l := range []*ledger.Ledger{store, openLedger(t, dir)} {
		assert.Equal(t, map[string]ledger.State{"c1": ledger.StateActive, "c3": ledger.StateActive}, states(snapshot(t, l)))
	}

	for _, dir := range busy {
		require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	}
	report, err = store.Reconcile(background, ledger.OwnerNRI, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"c1", "c3"}, report.Removed)
	assert.Empty(t, dirs(t, dir))
}
