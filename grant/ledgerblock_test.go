package grant_test

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
)

// claimOn claims a little of a GPU.
func claimOn(ledger *grant.Ledger, id, uuid string) error {
	_, err := ledger.Claim(background, claimOf(id, grant.Share{UUID: uuid, MemoryMiB: 1}), testGPUs(), writeFiles)
	return err
}

func TestBlock(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "pod ns/secret: the kubelet is down"))
	for _, l := range []*grant.Ledger{ledger, openLedger(t, dir)} {
		s := snapshot(t, l)
		require.Equal(t, map[string]grant.State{"c1": grant.StateBlocking}, states(s))
		entry := s.Entries[0]
		assert.Equal(t, grant.OwnerNRI, entry.Owner)
		assert.Empty(t, entry.Blocks)
		require.ErrorIs(t, entry.Problem, grant.ErrBlocked)
		assert.ErrorContains(t, entry.Problem, "nothing more is granted on this node: pod ns/secret: the kubelet is down")
		assert.WithinDuration(t, time.Now(), entry.CreatedAt, time.Minute)
		assert.Empty(t, s.Claims())

		err := claimOn(l, "c2", gpuA)
		require.ErrorIs(t, err, grant.ErrBlocked)
		assert.ErrorContains(t, err, "c1: gpuslice status on the node says why")
		assert.NotContains(t, err.Error(), "secret", "the refused pod's tenant reads it")
	}
}

func TestBlockOfGPUs(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "why", gpuA, gpuC))
	assert.Equal(t, []string{gpuA, gpuC}, snapshot(t, openLedger(t, dir)).Entries[0].Blocks)
	for i, l := range []*grant.Ledger{ledger, openLedger(t, dir)} {
		require.ErrorIs(t, claimOn(l, "c2", gpuA), grant.ErrBlocked)
		_, err := l.Claim(background, claimOf("c2", grant.Share{UUID: gpuB, MemoryMiB: 1}, grant.Share{UUID: gpuC, MemoryMiB: 1}), testGPUs(), nil)
		require.ErrorIs(t, err, grant.ErrBlocked)
		require.NoError(t, claimOn(l, []string{"b1", "b2"}[i], gpuB))
	}
	require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "another", gpuB))
	require.ErrorIs(t, claimOn(ledger, "b3", gpuB), grant.ErrBlocked, "told again")
	require.NoError(t, claimOn(ledger, "c2", gpuA))
}

func TestBlockEnds(t *testing.T) {
	ends := map[string]func(*grant.Ledger) error{
		"Remove":  func(l *grant.Ledger) error { return l.Remove(background, "c1") },
		"Release": func(l *grant.Ledger) error { return l.Release(background, "c1") },
		"Reconcile": func(l *grant.Ledger) error {
			_, err := l.Reconcile(background, grant.OwnerNRI, nil)
			return err
		},
		"Restore": func(l *grant.Ledger) error {
			restored, err := l.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
			return errors.Join(err, restored.Overbooked)
		},
		"removed by hand": func(l *grant.Ledger) error { return os.RemoveAll(l.Dir("c1")) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ledger, other := openLedger(t, dir), openLedger(t, dir)
			require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "why"))
			require.ErrorIs(t, claimOn(other, "c2", gpuA), grant.ErrBlocked)
			require.NoError(t, end(ledger))
			require.NoError(t, claimOn(other, "c2", gpuA))
			require.NoError(t, claimOn(openLedger(t, dir), "c3", gpuA))
			_, err := ledger.Claim(background, claimOf("c4", share(60_000, 1)), testGPUs(), nil)
			if name != "Restore" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, grant.ErrOverbooked, "what it holds is known and counts")
			assert.FileExists(t, filepath.Join(ledger.Dir("c1"), "usage"), "Block made the directory without")
		})
	}
}

// TestBlockIsReconciledAsAClaimIs: it stays while its container is listed or alive.
func TestBlockIsReconciledAsAClaimIs(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.NoError(t, ledger.Block(background, "listed", grant.OwnerNRI, "why"))
	require.NoError(t, ledger.Block(background, "unknown", grant.OwnerNRI, "why"))
	require.NoError(t, ledger.Block(background, "other", grant.OwnerRuntime, "why"))
	var asked []string
	report, err := ledger.Reconcile(background, grant.OwnerNRI, []string{"listed"}, grant.ForWholeNode(), aliveOnly(&asked, "unknown"))
	require.NoError(t, err)
	assert.Equal(t, &grant.Report{Kept: []string{"listed"}, Unlisted: []string{"unknown"}}, report)
	assert.Len(t, snapshot(t, ledger).Entries, 3)
}

// TestBlockOfADirThatIsThere keeps the files, which the container maps.
func TestBlockOfADirThatIsThere(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, l *grant.Ledger){
		"released": func(t *testing.T, l *grant.Ledger) { require.NoError(t, l.Release(background, "c1")) },
		"corrupt": func(t *testing.T, l *grant.Ledger) {
			require.NoError(t, os.Truncate(filepath.Join(l.Dir("c1"), "grant.json"), 3))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := openLedger(t, dir)
			_, err := first.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
			require.NoError(t, err)
			before(t, first)
			ledger := openLedger(t, dir)
			require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "why"))
			for _, l := range []*grant.Ledger{ledger, openLedger(t, dir)} {
				assert.Equal(t, map[string]grant.State{"c1": grant.StateBlocking}, states(snapshot(t, l)))
			}
			assert.FileExists(t, filepath.Join(ledger.Dir("c1"), "usage"))
			_, err = ledger.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), func(string) error {
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
	ledger := openLedger(t, dir, grant.WithRecovery(func(string) ([]grant.Share, error) { return []grant.Share{share(10_000, 1)}, nil }))
	for _, id := range []string{"active", "recovered"} {
		require.NoError(t, ledger.Block(background, id, grant.OwnerNRI, "why"))
	}
	assert.Equal(t, map[string]grant.State{"active": grant.StateActive, "recovered": grant.StateCorrupt}, states(snapshot(t, ledger)))
	require.NoError(t, claimOn(ledger, "c1", gpuA))
}

func TestBlockAgainChangesNothing(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "why"))
	before, err := os.ReadFile(filepath.Join(dir, "generation"))
	require.NoError(t, err)
	require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "why"))
	after, err := os.ReadFile(filepath.Join(dir, "generation"))
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

// TestDamagedBlock blocks on: known to this process it is written again, to
// another it is an entry that can't be read.
func TestDamagedBlock(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, "why"))
	path := filepath.Join(ledger.Dir("c1"), "grant.json")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.ErrorIs(t, claimOn(openLedger(t, dir), "c2", gpuA), grant.ErrCorrupt)
	require.ErrorIs(t, claimOn(ledger, "c2", gpuA), grant.ErrBlocked)
	require.ErrorIs(t, claimOn(openLedger(t, dir), "c2", gpuA), grant.ErrBlocked, "it was written again")
}

func TestBlockOfNonsense(t *testing.T) {
	ledger := openLedger(t, t.TempDir())
	for _, err := range []error{
		ledger.Block(background, "../x", grant.OwnerNRI, "why"),
		ledger.Block(background, "c1", "", "why"),
		ledger.Block(background, "c1", grant.OwnerNRI, "why", "GPU-0"),
	} {
		require.ErrorIs(t, err, grant.ErrMalformed)
	}
	require.NoError(t, ledger.Block(background, "c1", grant.OwnerNRI, strings.Repeat("ä", 5000)+"\xff"))
	assert.Less(t, len(snapshot(t, ledger).Entries[0].Problem.Error()), 2000)
}

// blockAndUnblock blocks and removes for ever.
func blockAndUnblock(dir string) error {
	ledger, err := grant.OpenLedger(dir)
	if err != nil {
		return err
	}
	for {
		if err := ledger.Block(background, "c1", grant.OwnerNRI, "why", gpuA); err != nil {
			return err
		}
		if err := ledger.Remove(background, "c1"); err != nil {
			return err
		}
	}
}

// TestKilledWhileBlocking leaves a whole entry or none.
func TestKilledWhileBlocking(t *testing.T) {
	seen := map[grant.State]int{}
	for range 10 {
		dir := shmDir(t)
		command := startHelper(t, "block", dir, "")
		time.Sleep(30 * time.Millisecond)
		require.NoError(t, command.Process.Kill())
		_ = command.Wait() // killed: always an error
		ledger := openLedger(t, dir)
		s := snapshot(t, ledger)
		want := []string{}
		if len(s.Entries) > 0 {
			require.Equal(t, grant.StateBlocking, s.Entries[0].State)
			want = []string{"c1"}
		}
		seen[states(s)["c1"]]++
		require.Equal(t, want, dirs(t, dir))
	}
	t.Logf("%v", seen)
}
