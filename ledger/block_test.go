package ledger_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// claimOn claims a little of a GPU.
func claimOn(ledger *ledger.Ledger, id, uuid string) error {
	_, err := ledger.Claim(background, claimOf(id, grant.Share{UUID: uuid, MemoryMiB: 1}), testGPUs(), writeFiles)
	return err
}

func TestBlock(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	began := time.Now()
	require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "pod ns/secret: the kubelet is down"))
	for _, l := range []*ledger.Ledger{store, openLedger(t, dir)} {
		s := snapshot(t, l)
		require.Equal(t, map[string]ledger.State{"c1": ledger.StateBlocking}, states(s))
		entry := s.Entries[0]
		assert.Equal(t, ledger.OwnerNRI, entry.Owner)
		assert.Empty(t, entry.Blocks)
		require.ErrorIs(t, entry.Problem, ledger.ErrBlocked)
		assert.ErrorContains(t, entry.Problem, "reserving nothing else on this node: pod ns/secret: the kubelet is down")
		assert.WithinRange(t, entry.CreatedAt, began, time.Now())
		assert.Empty(t, s.Claims())

		err := claimOn(l, "c2", gpuA)
		require.ErrorIs(t, err, ledger.ErrBlocked)
		assert.ErrorContains(t, err, "c1: gpuslice status on the node shows the reasons")
		assert.NotContains(t, err.Error(), "secret", "the refused pod's tenant reads it")
	}
}

func TestBlockOfGPUs(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "why", gpuA, gpuC))
	assert.Equal(t, []string{gpuA, gpuC}, snapshot(t, openLedger(t, dir)).Entries[0].Blocks)
	for i, l := range []*ledger.Ledger{store, openLedger(t, dir)} {
		require.ErrorIs(t, claimOn(l, "c2", gpuA), ledger.ErrBlocked)
		_, err := l.Claim(background, claimOf("c2", grant.Share{UUID: gpuB, MemoryMiB: 1}, grant.Share{UUID: gpuC, MemoryMiB: 1}), testGPUs(), nil)
		require.ErrorIs(t, err, ledger.ErrBlocked)
		require.NoError(t, claimOn(l, []string{"b1", "b2"}[i], gpuB))
	}
	require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "another", gpuB))
	require.ErrorIs(t, claimOn(store, "b3", gpuB), ledger.ErrBlocked, "reported again")
	require.NoError(t, claimOn(store, "c2", gpuA))
}

func TestBlockEnds(t *testing.T) {
	ends := map[string]func(*ledger.Ledger) error{
		"Remove":  func(l *ledger.Ledger) error { return l.Remove(background, "c1") },
		"Release": func(l *ledger.Ledger) error { return l.Release(background, "c1") },
		"Reconcile": func(l *ledger.Ledger) error {
			_, err := l.Reconcile(background, ledger.OwnerNRI, nil)
			return err
		},
		"Restore": func(l *ledger.Ledger) error {
			restored, err := l.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
			return errors.Join(err, restored.Overbooked)
		},
		"removed by hand": func(l *ledger.Ledger) error { return os.RemoveAll(l.Dir("c1")) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store, other := openLedger(t, dir), openLedger(t, dir)
			require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "why"))
			require.ErrorIs(t, claimOn(other, "c2", gpuA), ledger.ErrBlocked)
			require.NoError(t, end(store))
			require.NoError(t, claimOn(other, "c2", gpuA))
			require.NoError(t, claimOn(openLedger(t, dir), "c3", gpuA))
			_, err := store.Claim(background, claimOf("c4", share(60_000, 1)), testGPUs(), nil)
			if name != "Restore" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, grant.ErrOverbooked, "what it holds is known and counts")
			assert.FileExists(t, filepath.Join(store.Dir("c1"), "usage"), "Block made the directory without")
		})
	}
}

// TestBlockIsReconciledAsAClaimIs: it stays while its container is listed or alive.
func TestBlockIsReconciledAsAClaimIs(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	require.NoError(t, store.Block(background, "listed", ledger.OwnerNRI, "why"))
	require.NoError(t, store.Block(background, "unknown", ledger.OwnerNRI, "why"))
	require.NoError(t, store.Block(background, "other", ledger.OwnerRuntime, "why"))
	var asked []string
	report, err := store.Reconcile(background, ledger.OwnerNRI, []string{"listed"}, ledger.ForWholeNode(), aliveOnly(&asked, "unknown"))
	require.NoError(t, err)
	assert.Equal(t, &ledger.Report{Kept: []string{"listed"}, Unlisted: []string{"unknown"}}, report)
	assert.Len(t, snapshot(t, store).Entries, 3)
}

// TestBlockOfADirThatIsThere keeps the files, which the container maps.
func TestBlockOfADirThatIsThere(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, l *ledger.Ledger){
		"released": func(t *testing.T, l *ledger.Ledger) { require.NoError(t, l.Release(background, "c1")) },
		"corrupt": func(t *testing.T, l *ledger.Ledger) {
			require.NoError(t, os.Truncate(filepath.Join(l.Dir("c1"), "grant.json"), 3))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := openLedger(t, dir)
			_, err := first.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
			require.NoError(t, err)
			before(t, first)
			store := openLedger(t, dir)
			require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "why"))
			for _, l := range []*ledger.Ledger{store, openLedger(t, dir)} {
				assert.Equal(t, map[string]ledger.State{"c1": ledger.StateBlocking}, states(snapshot(t, l)))
			}
			assert.FileExists(t, filepath.Join(store.Dir("c1"), "usage"))
			_, err = store.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), func(string) error {
				return errors.New("must not be called: the container maps the files that are there")
			})
			require.NoError(t, err)
			assert.EqualValues(t, 60_000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
		})
	}
}

// TestBlockOfAKnownEntry: what counts already needs no block.
func TestBlockOfAKnownEntry(t *testing.T) {
	dir := t.TempDir()
	_, err := openLedger(t, dir).Claim(background, claimOf("active", share(10_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	_, err = openLedger(t, dir).Claim(background, claimOf("recovered", share(10_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(dir, "containers", "recovered", "grant.json"), 3))
	store := openLedger(t, dir, ledger.WithRecovery(func(string) (ledger.Claim, error) { return ledger.Claim{Shares: []grant.Share{share(10_000, 1)}}, nil }))
	for _, id := range []string{"active", "recovered"} {
		require.NoError(t, store.Block(background, id, ledger.OwnerNRI, "why"))
	}
	assert.Equal(t, map[string]ledger.State{"active": ledger.StateActive, "recovered": ledger.StateCorrupt}, states(snapshot(t, store)))
	require.NoError(t, claimOn(store, "c1", gpuA))
}

func TestBlockAgainChangesNothing(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "why"))
	before, err := os.ReadFile(filepath.Join(dir, "generation"))
	require.NoError(t, err)
	require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "why"))
	after, err := os.ReadFile(filepath.Join(dir, "generation"))
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

// TestDamagedBlock blocks on: known to this process it is written again, to
// another it is an entry that can't be read.
func TestDamagedBlock(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "why"))
	path := filepath.Join(store.Dir("c1"), "grant.json")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.ErrorIs(t, claimOn(openLedger(t, dir), "c2", gpuA), ledger.ErrCorrupt)
	require.ErrorIs(t, claimOn(store, "c2", gpuA), ledger.ErrBlocked)
	require.ErrorIs(t, claimOn(openLedger(t, dir), "c2", gpuA), ledger.ErrBlocked, "it was written again")
}

func TestBlockOfNonsense(t *testing.T) {
	store := openLedger(t, t.TempDir())
	for _, err := range []error{
		store.Block(background, "../x", ledger.OwnerNRI, "why"),
		store.Block(background, "c1", "", "why"),
		store.Block(background, "c1", ledger.OwnerNRI, "why", "GPU-0"),
	} {
		require.ErrorIs(t, err, grant.ErrMalformed)
	}
	require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, strings.Repeat("ä", 5000)+"\xff"))
	assert.Less(t, len(snapshot(t, store).Entries[0].Problem.Error()), 2000)
}

// blockAndUnblock blocks and removes for ever.
func blockAndUnblock(dir string) error {
	store, err := ledger.Open(dir)
	if err != nil {
		return err
	}
	for {
		if err := store.Block(background, "c1", ledger.OwnerNRI, "why", gpuA); err != nil {
			return err
		}
		if err := store.Remove(background, "c1"); err != nil {
			return err
		}
	}
}

// TestKilledWhileBlocking leaves a whole entry or none.
func TestKilledWhileBlocking(t *testing.T) {
	seen := map[ledger.State]int{}
	for range 10 {
		dir := shmDir(t)
		command := startHelper(t, "block", dir, "")
		time.Sleep(30 * time.Millisecond)
		require.NoError(t, command.Process.Kill())
		_ = command.Wait() // killed: always an error
		store := openLedger(t, dir)
		s := snapshot(t, store)
		want := []string{}
		if len(s.Entries) > 0 {
			require.Equal(t, ledger.StateBlocking, s.Entries[0].State)
			want = []string{"c1"}
		}
		seen[states(s)["c1"]]++
		require.Equal(t, want, dirs(t, dir))
	}
	t.Logf("%v", seen)
}
