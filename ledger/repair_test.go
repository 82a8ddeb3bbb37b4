package ledger_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// interrupt makes the ledger look as if a holder of the lock was killed.
func interrupt(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "generation")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, data, 8)
	generation := binary.LittleEndian.Uint64(data)
	require.Zero(t, generation%2, "no process was killed yet")
	require.NoError(t, os.WriteFile(path, binary.LittleEndian.AppendUint64(nil, generation+1), 0o600))
}

func TestInterruptedChangeIsCleanedUp(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	_, err := ledger.Claim(background, claimOf("c1", share(1000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	for _, name := range []string{".new-c2", ".old-c3"} {
		dir := filepath.Join(dir, "containers", name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, writeFiles(dir))
	}
	interrupt(t, dir)
	_, err = ledger.Claim(background, claimOf("c4", share(1000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"c1", "c4"}, dirs(t, dir))
	assert.EqualValues(t, 2000, snapshot(t, ledger).GPUs[gpuA].MemoryMiB)
}

// TestKilledBetweenNamingAndReleasing: the new attempt has its name, the old
// one is not marked yet.
func TestKilledBetweenNamingAndReleasing(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	first, second := claimOf("n0", share(80_000, 80)), claimOf("n1", share(80_000, 80))
	second.PodUID = first.PodUID
	_, err := store.Claim(background, first, testGPUs(), nil)
	require.NoError(t, err)
	_, err = store.Claim(background, second, testGPUs(), nil)
	require.NoError(t, err)
	old := store.Dir("n0")
	require.NoError(t, os.Rename(filepath.Join(old, "released.json"), filepath.Join(old, "grant.json")))
	interrupt(t, dir)

	s := snapshot(t, openLedger(t, dir))
	assert.Equal(t, map[string]ledger.State{"n0": ledger.StateReleased, "n1": ledger.StateActive}, states(s))
	assert.FileExists(t, filepath.Join(old, "released.json"))
}

func TestLostGenerationIsFoundAgain(t *testing.T) {
	dir := t.TempDir()
	first, second := claimOf("n0", share(80_000, 80)), claimOf("n1", share(80_000, 80))
	second.PodUID = first.PodUID
	_, err := openLedger(t, dir).Claim(background, first, testGPUs(), nil)
	require.NoError(t, err)
	for _, left := range [][]byte{nil, {1, 2, 3}, bytes.Repeat([]byte{0xff}, 8), bytes.Repeat([]byte{0xfe}, 8)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "generation"), left, 0o600))
		assert.Equal(t, map[string]ledger.State{"n0": ledger.StateActive}, states(snapshot(t, openLedger(t, dir))))
	}
	_, err = openLedger(t, dir).Claim(background, second, testGPUs(), nil)
	require.NoError(t, err)
	assert.Equal(t, map[string]ledger.State{"n0": ledger.StateReleased, "n1": ledger.StateActive}, states(snapshot(t, openLedger(t, dir))),
		"the later attempt must have the higher sequence")
}

// damage is a way to make a record unreadable.
var damage = map[string]func(path string) error{
	"garbage":     func(path string) error { return os.WriteFile(path, []byte("\x00\xffgarbage"), 0o644) },
	"truncated":   func(path string) error { return os.Truncate(path, 20) },
	"empty":       func(path string) error { return os.Truncate(path, 0) },
	"gone":        os.Remove,
	"a directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) },
	"another's": func(path string) error {
		return os.WriteFile(path, []byte(`{"version":1,"containerID":"other"}`), 0o644)
	},
	"a sequence that overflows": func(path string) error {
		data, err := os.ReadFile(path)
		data = bytes.Replace(data, []byte(`"sequence": `), []byte(`"sequence": 1844674407370955161`), 1)
		return errors.Join(err, os.WriteFile(path, data, 0o644))
	},
	"a later format": func(path string) error { return os.WriteFile(path, []byte(`{"version":2}`), 0o644) },
}

func TestDamagedRecord(t *testing.T) {
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := openLedger(t, dir).Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
			require.NoError(t, err)
			require.NoError(t, hurt(filepath.Join(dir, "containers", "c1", "grant.json")))

			store := openLedger(t, dir)
			s := snapshot(t, store)
			require.Equal(t, map[string]ledger.State{"c1": ledger.StateCorrupt}, states(s))
			require.Error(t, s.Entries[0].Problem)

			_, err = store.Claim(background, claimOf("c2", share(1, 1)), testGPUs(), nil)
			require.ErrorIs(t, err, ledger.ErrCorrupt, "what is free is not known")
			assert.ErrorContains(t, err, "c1")

			report, err := store.Reconcile(background, ledger.OwnerNRI, []string{"c1"})
			require.NoError(t, err)
			assert.Equal(t, []string{"c1"}, report.Corrupt)
			restored, err := store.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), func(string) error {
				return errors.New("must not be called: the container maps the files that are there")
			})
			require.NoError(t, err)
			require.NoError(t, restored.Overbooked)
			assert.FileExists(t, filepath.Join(restored.Dir, "usage"))

			_, err = store.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), nil)
			require.ErrorIs(t, err, grant.ErrOverbooked)
			_, err = store.Claim(background, claimOf("c2", share(1, 1)), testGPUs(), nil)
			require.NoError(t, err)
			assert.EqualValues(t, 60_001, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
		})
	}
}

func TestDamagedRecordEndsWithItsContainer(t *testing.T) {
	ends := map[string]func(*ledger.Ledger) error{
		"removed":  func(l *ledger.Ledger) error { return l.Remove(background, "c1") },
		"released": func(l *ledger.Ledger) error { return l.Release(background, "c1") },
	}
	for name, hurt := range damage {
		for how, end := range ends {
			t.Run(name+" then "+how, func(t *testing.T) {
				dir := t.TempDir()
				_, err := openLedger(t, dir).Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
				require.NoError(t, err)
				require.NoError(t, hurt(filepath.Join(dir, "containers", "c1", "grant.json")))
				store := openLedger(t, dir)
				require.NoError(t, end(store))
				for _, l := range []*ledger.Ledger{store, openLedger(t, dir)} {
					assert.Empty(t, snapshot(t, l).GPUs)
				}
				_, err = openLedger(t, dir).Claim(background, claimOf("c2", share(100_000, 1)), testGPUs(), nil)
				require.NoError(t, err)
			})
		}
	}
}

func TestDamagedRecordThatThisProcessKnows(t *testing.T) {
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			agent, wrapper := openLedger(t, dir), openLedger(t, dir)
			_, err := agent.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
			require.NoError(t, err)
			require.NoError(t, hurt(filepath.Join(dir, "containers", "c1", "grant.json")))
			interrupt(t, dir) // so that the agent looks

			_, err = agent.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), nil)
			require.ErrorIs(t, err, grant.ErrOverbooked)
			assert.Equal(t, map[string]ledger.State{"c1": ledger.StateActive}, states(snapshot(t, agent)))
			assert.Equal(t, map[string]ledger.State{"c1": ledger.StateActive}, states(snapshot(t, wrapper)), "it was written again")
		})
	}
}

func TestDamagedRecordWithRecovery(t *testing.T) {
	dir := t.TempDir()
	_, err := openLedger(t, dir).Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(dir, "containers", "c1", "grant.json"), 10))

	store := openLedger(t, dir, ledger.WithRecovery(func(dir string) (ledger.Claim, error) {
		assert.FileExists(t, filepath.Join(dir, "limits"))
		return ledger.Claim{Shares: []grant.Share{share(60_000, 1)}}, nil
	}))
	_, err = store.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked)
	_, err = store.Claim(background, claimOf("c2", share(40_000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	assert.EqualValues(t, 100_000, snapshot(t, store).GPUs[gpuA].MemoryMiB)

	failing := openLedger(t, dir, ledger.WithRecovery(func(string) (ledger.Claim, error) { return ledger.Claim{}, errors.New("no limits") }))
	_, err = failing.Claim(background, claimOf("c3", share(1, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrCorrupt)
	assert.ErrorContains(t, err, "no limits")
}

func TestStrangersInTheDirectory(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	containers := filepath.Join(dir, "containers")
	require.NoError(t, os.Mkdir(filepath.Join(containers, "empty"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(containers, "lost+found"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(containers, "README"), []byte("hello"), 0o644))
	_, err := ledger.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"README", "c1", "lost+found"}, dirs(t, dir))
	assert.Len(t, snapshot(t, ledger).Entries, 1)
}

// TestCorruptDirRemovedByHand: what the message of the refusal advises must
// help without a restart.
func TestCorruptDirRemovedByHand(t *testing.T) {
	dir := t.TempDir()
	_, err := openLedger(t, dir).Claim(background, claimOf("c1", share(1, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	store := openLedger(t, dir)
	require.NoError(t, os.Truncate(filepath.Join(store.Dir("c1"), "grant.json"), 10))
	_, err = store.Claim(background, claimOf("c2", share(1, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrCorrupt)
	require.NoError(t, os.RemoveAll(store.Dir("c1")))
	_, err = store.Claim(background, claimOf("c2", share(1, 1)), testGPUs(), nil)
	require.NoError(t, err)
}

// TestLostDirOfALiveContainer: this process's memory must neither give its
// GPU away nor keep it from being restored.
func TestLostDirOfALiveContainer(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(store.Dir("c1")))
	_, err = store.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), writeFiles)
	require.ErrorIs(t, err, grant.ErrOverbooked)

	_, err = store.Reconcile(background, ledger.OwnerNRI, []string{"c1"})
	require.NoError(t, err)
	require.Empty(t, snapshot(t, store).Claims(), "the caller sees that it has to restore")
	_, err = store.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(store.Dir("c1")))
	restored, err := store.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	assert.FileExists(t, filepath.Join(restored.Dir, "usage"), "restored although this process remembers it")
	assert.EqualValues(t, 60_000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
}

func TestContainersDirectoryRemoved(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "containers")))
	_, err := ledger.Claim(background, claimOf("c1", share(1, 0)), testGPUs(), nil)
	require.NoError(t, err, "its first look makes it again")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "containers")))
	_, err = ledger.Claim(background, claimOf("c2", share(1, 0)), testGPUs(), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ledger.Claim(background, claimOf("c2", share(1, 0)), testGPUs(), nil)
	require.NoError(t, err, "a failure makes it look again")
}

func TestReconcile(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	for _, c := range []ledger.Claim{claimOf("n1", share(1, 1)), claimOf("n2", share(1, 1)), claimOf("n3", share(1, 1)), claimOf("r1", share(1, 1))} {
		if c.ContainerID == "r1" {
			c.Owner = ledger.OwnerRuntime
		}
		_, err := store.Claim(background, c, testGPUs(), writeFiles)
		require.NoError(t, err)
	}
	require.NoError(t, store.Release(background, "n3"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "containers", ".new-x"), 0o755))
	report, err := store.Reconcile(background, ledger.OwnerNRI, []string{"n1", "without-a-gpu"})
	require.NoError(t, err)
	assert.Equal(t, &ledger.Report{Kept: []string{"n1"}, Removed: []string{"n2", "n3"}, Leftovers: []string{".new-x"}}, report)
	assert.Equal(t, []string{"n1", "r1"}, dirs(t, dir))
	assert.Equal(t, 2, snapshot(t, store).GPUs[gpuA].Replicas)

	report, err = store.Reconcile(background, ledger.OwnerRuntime, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"r1"}, report.Removed)
}

func TestRestore(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), nil)
	require.NoError(t, err)

	restored, err := store.Restore(background, claimOf("c2", share(60_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err, "it is there, so it counts")
	require.ErrorIs(t, restored.Overbooked, grant.ErrOverbooked)
	assert.FileExists(t, filepath.Join(restored.Dir, "usage"))
	restored, err = store.Restore(background, claimOf("c3", grant.Share{UUID: gpuX, MemoryMiB: 1}), testGPUs(), nil)
	require.NoError(t, err)
	require.ErrorIs(t, restored.Overbooked, grant.ErrUnknownGPU)
	assert.EqualValues(t, 120_000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
	_, err = store.Claim(background, claimOf("c4", share(1, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked)
	assert.ErrorContains(t, err, "0 of 100000 MiB free")

	restored, err = store.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), nil)
	require.NoError(t, err, "idempotent")
	require.NoError(t, restored.Overbooked)
	_, err = store.Restore(background, claimOf("c1", share(1, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrConflict)
}

func TestRestoreOfAReleasedContainerThatIsLive(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, store.Release(background, "c1"))
	_, err = store.Restore(background, claimOf("c1", share(60_000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	for _, l := range []*ledger.Ledger{store, openLedger(t, dir)} {
		assert.Equal(t, map[string]ledger.State{"c1": ledger.StateActive}, states(snapshot(t, l)))
	}
}

// TestRestoreTakesNobodysPlace: two live attempts of one container both count,
// in whichever order they are restored.
func TestRestoreTakesNobodysPlace(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	for _, id := range []string{"n1", "n0"} {
		c := claimOf(id, share(10_000, 1))
		c.PodUID = "uid"
		_, err := ledger.Restore(background, c, testGPUs(), nil)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 20_000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
	next := claimOf("n2", share(90_000, 1))
	next.PodUID = "uid"
	_, err := ledger.Claim(background, next, testGPUs(), nil)
	require.NoError(t, err)
	assert.EqualValues(t, 90_000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
}
