package ledger_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// withTurns is a claim with turns on its GPUs.
func withTurns(id string, shares ...grant.Share) ledger.Claim {
	c := claimOf(id, shares...)
	c.TurnID = limiter.TurnIDOf(id, "")
	return c
}

// tableOf is what the containers of a GPU read: percentages by turn ID.
func tableOf(t *testing.T, dir, gpu string) map[limiter.TurnID]int {
	t.Helper()
	table, err := limiter.ReadTable(limiter.TablePath(dir, gpu))
	require.NoError(t, err)
	percents := map[limiter.TurnID]int{}
	for _, s := range table.Shares {
		percents[s.ID] = s.CorePercent
	}
	require.Len(t, percents, len(table.Shares))
	return percents
}

// requireTurns compares tables and turn files with the claims.
func requireTurns(t *testing.T, dir string, store *ledger.Ledger) {
	t.Helper()
	want, files := map[string]map[limiter.TurnID]int{}, map[string]map[limiter.TurnID]bool{}
	for _, e := range snapshot(t, store).Entries {
		for _, s := range e.Shares {
			if want[s.UUID] == nil {
				want[s.UUID], files[s.UUID] = map[limiter.TurnID]int{}, map[limiter.TurnID]bool{}
			}
			if files[s.UUID][e.TurnID] = true; e.State == ledger.StateActive {
				want[s.UUID][e.TurnID] = s.CorePercent
			}
		}
	}
	gpus, err := limiter.TurnGPUs(dir)
	require.NoError(t, err)
	for _, gpu := range gpus {
		if want[gpu] == nil {
			want[gpu] = map[limiter.TurnID]int{}
		}
		assert.Equal(t, want[gpu], tableOf(t, dir, gpu), gpu)
	}
	require.NoError(t, limiter.EachTurn(dir, func(gpu string, id limiter.TurnID) {
		assert.True(t, files[gpu][id] || id.OfSlice(), "a turn file of no claim: %s", id)
		delete(files[gpu], id)
	}))
	for gpu, without := range files {
		assert.Empty(t, without, "claims on %s without a turn file", gpu)
	}
}

func TestTurnsFollowTheClaims(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir, ledger.WithFloor(7))
	other := openLedger(t, dir)
	onB := share(1000, 50)
	onB.UUID = gpuB
	a, b := withTurns("a", share(1000, 30)), withTurns("b", share(1000, 20), onB)
	a.CorePolicy, a.CoreCeiling, a.HighPriority = limiter.PolicyForce, 60, true
	_, err := store.Claim(background, a, testGPUs(), nil)
	require.NoError(t, err)
	_, err = other.Claim(background, b, testGPUs(), nil)
	require.NoError(t, err)
	table, err := limiter.ReadTable(limiter.TablePath(dir, gpuA))
	require.NoError(t, err)
	assert.Equal(t, limiter.Table{FloorPercent: 7, Shares: []limiter.TableShare{
		{ID: a.TurnID, CorePercent: 30, SoftPercent: 60, Policy: limiter.PolicyForce, Priority: limiter.PriorityHigh},
		{ID: b.TurnID, CorePercent: 20, Priority: limiter.PriorityLow},
	}}, table, "a process without a floor leaves it")
	requireTurns(t, dir, store)

	// While the new limits are written, the higher of both shares counts.
	_, err = store.Resize(background, "a", []grant.Share{share(1000, 10)}, testGPUs(), func(string, ledger.Claim) error {
		assert.Equal(t, 30, tableOf(t, dir, gpuA)[a.TurnID])
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, 10, tableOf(t, dir, gpuA)[a.TurnID])

	require.NoError(t, other.Release(background, "a"))
	requireTurns(t, dir, store)
	_, err = store.Restore(background, a, testGPUs(), nil)
	require.NoError(t, err)
	requireTurns(t, dir, other)
	require.NoError(t, store.Remove(background, "b"))
	requireTurns(t, dir, other)
	require.NoError(t, store.Block(background, "blocking", ledger.OwnerNRI, "why"))
	requireTurns(t, dir, other)
	_, err = store.Reconcile(background, ledger.OwnerNRI, nil)
	require.NoError(t, err)
	requireTurns(t, dir, other)
	assert.Empty(t, tableOf(t, dir, gpuA))
	assert.Empty(t, tableOf(t, dir, gpuB))
}

// A later attempt takes the place of the earlier one in the table too.
func TestTurnsOfALaterAttempt(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	for _, id := range []string{"first", "second"} {
		c := withTurns(id, share(1000, 60))
		c.PodUID, c.Container = "pod", "main"
		_, err := store.Claim(background, c, testGPUs(), nil)
		require.NoError(t, err)
		assert.Equal(t, map[limiter.TurnID]int{c.TurnID: 60}, tableOf(t, dir, gpuA))
	}
	requireTurns(t, dir, store)
}

func TestTurnsOfAClaimThatFails(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	for name, populate := range map[string]func(string) error{
		"its files": func(string) error { return errors.New("no space") },
		"its record": func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "grant.json"), 0o755)
		},
	} {
		_, err := store.Claim(background, withTurns("c1", share(1000, 10)), testGPUs(), populate)
		require.Error(t, err, name)
		requireTurns(t, dir, store)
	}
	// A file in the place of the GPU's directory: no container is created without turns.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "turns")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "turns"), nil, 0o600))
	_, err := store.Claim(background, withTurns("c1", share(1000, 10)), testGPUs(), nil)
	require.ErrorContains(t, err, "turn files")
	require.Empty(t, snapshot(t, store).Entries)
}

// The files of a slice are the slice's.
func TestTurnsOfASlice(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	id := limiter.SliceTurnID("small")
	require.NoError(t, limiter.CreateTurns(dir, []string{gpuA}, id, true))
	c := claimOf("c1", share(1000, 10))
	c.TurnID = id
	_, err := store.Claim(background, c, testGPUs(), nil)
	require.NoError(t, err)
	assert.Equal(t, map[limiter.TurnID]int{id: 10}, tableOf(t, dir, gpuA))
	require.NoError(t, store.Remove(background, "c1"))
	assert.Empty(t, tableOf(t, dir, gpuA))
	_, err = store.Reconcile(background, ledger.OwnerNRI, nil)
	require.NoError(t, err)
	assert.FileExists(t, limiter.TurnPath(dir, gpuA, id))
}

// MIG devices have one container each, and claims without an ID no turns.
func TestNoTurns(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("old", share(1000, 10)), testGPUs(), nil)
	require.NoError(t, err)
	mig := share(1000, 100)
	mig.UUID = "MIG-00000001-5151-4000-8000-000000000009"
	gpus := map[string]grant.GPU{mig.UUID: {UUID: mig.UUID, MemoryMiB: 1000, CorePercent: 100, Replicas: 1}}
	_, err = store.Claim(background, withTurns("mig", mig), gpus, nil)
	require.NoError(t, err)
	assert.NoDirExists(t, filepath.Join(dir, "turns"))
}

// No process of the container gets a lease on a turn file, from its creation on.
func TestTurnsAreHeld(t *testing.T) {
	dir := t.TempDir()
	var holder limiter.Holder
	defer holder.Close()
	store := openLedger(t, dir, ledger.WithHolder(&holder))
	c := withTurns("c1", share(1000, 30))
	_, err := store.Claim(background, c, testGPUs(), nil)
	require.NoError(t, err)
	file, err := os.Open(limiter.TurnPath(dir, gpuA, c.TurnID))
	require.NoError(t, err)
	defer file.Close()
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	require.ErrorIs(t, err, unix.EAGAIN)
	require.NoError(t, store.Remove(background, "c1"))
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	require.NoError(t, err, "it is closed")
}

// A damaged record keeps its turns, by what is recovered from the limits.
func TestTurnsOfARecoveredClaim(t *testing.T) {
	dir := t.TempDir()
	c := withTurns("c1", share(1000, 30))
	_, err := openLedger(t, dir).Claim(background, c, testGPUs(), nil)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(dir, "containers", "c1", "grant.json"), 3))
	store := openLedger(t, dir, ledger.WithRecovery(func(string) (ledger.Claim, error) {
		return ledger.Claim{Shares: c.Shares, TurnID: c.TurnID}, nil
	}))
	_, err = store.Claim(background, withTurns("c2", share(1000, 10)), testGPUs(), nil)
	require.NoError(t, err)
	assert.Equal(t, map[limiter.TurnID]int{c.TurnID: 30, limiter.TurnIDOf("c2", ""): 10}, tableOf(t, dir, gpuA))
}

// After a kill between a change and the tables, the next process writes them, whatever it does.
func TestTurnsAfterAKillBeforeTheTables(t *testing.T) {
	for name, use := range map[string]func(*ledger.Ledger) error{
		"snapshot": func(l *ledger.Ledger) error { _, err := l.Snapshot(background); return err },
		"release":  func(l *ledger.Ledger) error { return l.Release(background, "unknown") },
		"claim": func(l *ledger.Ledger) error {
			_, err := l.Claim(background, withTurns("c9", share(1, 1)), testGPUs(), nil)
			return err
		},
	} {
		dir := t.TempDir()
		store := openLedger(t, dir)
		for i := range 3 {
			_, err := store.Claim(background, withTurns(fmt.Sprint("c", i), share(1000, 10+i)), testGPUs(), nil)
			require.NoError(t, err)
		}
		// As after the kill: an odd generation, an older table, a turn file that is left, and a half-written one.
		var tables limiter.TableWriter
		require.NoError(t, tables.Write(limiter.TablePath(dir, gpuA), limiter.Table{Shares: []limiter.TableShare{{ID: 77}}}))
		require.NoError(t, limiter.CreateTurns(dir, []string{gpuA, gpuB}, limiter.TurnIDOf("killed", "nonce"), true))
		half, err := os.OpenFile(limiter.TablePath(dir, gpuB), os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = half.WriteAt([]byte{1}, 8)
		require.NoError(t, errors.Join(err, half.Close()))
		makeOdd(t, dir)
		require.NoError(t, use(openLedger(t, dir)), name)
		requireTurns(t, dir, openLedger(t, dir))

		// What a container could still use is removed when it is known to be gone.
		require.NoError(t, limiter.CreateTurns(dir, []string{gpuA}, limiter.TurnIDOf("killed", ""), true))
		_, err = store.Reconcile(background, ledger.OwnerNRI, []string{"c0"})
		require.NoError(t, err)
		requireTurns(t, dir, store)
	}
}

// A container that runs keeps its turn files, whatever happens to its claim, until it is known to be gone: it has mounted
// them, and peers read no others.
func TestTurnsOfARestoredClaim(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, string, *ledger.Ledger){
		"released": func(t *testing.T, _ string, store *ledger.Ledger) {
			require.NoError(t, store.Release(background, "c1"))
		},
		"lost": func(t *testing.T, dir string, _ *ledger.Ledger) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "containers")))
		},
		"lost, and another process was killed": func(t *testing.T, dir string, _ *ledger.Ledger) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "containers", "c1")))
			makeOdd(t, dir)
			snapshot(t, openLedger(t, dir))
		},
		"blocking": func(t *testing.T, dir string, store *ledger.Ledger) {
			require.NoError(t, store.Release(background, "c1"))
			require.NoError(t, store.Block(background, "c1", ledger.OwnerNRI, "why"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store := openLedger(t, dir)
			c := withTurns("c1", share(1000, 30))
			_, err := store.Claim(background, c, testGPUs(), nil)
			require.NoError(t, err)
			path := limiter.TurnPath(dir, gpuA, c.TurnID)
			was, err := os.ReadFile(path)
			require.NoError(t, err)
			mount, err := os.Open(path)
			require.NoError(t, err)
			defer mount.Close()
			mounted, err := mount.Stat()
			require.NoError(t, err)
			lose(t, dir, store)
			_, err = store.Reconcile(background, ledger.OwnerRuntime, nil)
			require.NoError(t, err)
			_, err = store.Reconcile(background, ledger.OwnerNRI, []string{"c1"})
			require.NoError(t, err)
			_, err = store.Restore(background, c, testGPUs(), nil)
			require.NoError(t, err)
			is, err := os.Stat(path)
			require.NoError(t, err)
			assert.True(t, os.SameFile(mounted, is))
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, was, content)
			assert.Equal(t, map[limiter.TurnID]int{c.TurnID: 30}, tableOf(t, dir, gpuA))

			_, err = store.Reconcile(background, ledger.OwnerNRI, nil)
			require.NoError(t, err)
			requireTurns(t, dir, store)
			assert.NoFileExists(t, path)
		})
	}
}

// An entry that an operator removes has no share any more.
func TestTurnsOfAnEntryRemovedByHand(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	for _, id := range []string{"c1", "c2"} {
		_, err := store.Claim(background, withTurns(id, share(1000, 30)), testGPUs(), nil)
		require.NoError(t, err)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "containers", "c1")))
	require.NoError(t, store.Block(background, "c2", ledger.OwnerNRI, "reads the directories, and changes nothing"))
	assert.Equal(t, map[limiter.TurnID]int{limiter.TurnIDOf("c2", ""): 30}, tableOf(t, dir, gpuA))
}

func makeOdd(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "generation")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[0] |= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// A container that started with an earlier limiter has no turns, and counts for those that have some.
func TestTablesHaveContainersWithoutTurns(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("earlier", share(1000, 70)), testGPUs(), nil)
	require.NoError(t, err)
	c := withTurns("c1", share(1000, 30))
	_, err = store.Claim(background, c, testGPUs(), nil)
	require.NoError(t, err)
	earlier := limiter.TurnIDOf("earlier", "")
	assert.Equal(t, map[limiter.TurnID]int{earlier: 70, c.TurnID: 30}, tableOf(t, dir, gpuA))
	assert.NoFileExists(t, limiter.TurnPath(dir, gpuA, earlier))
	other := openLedger(t, dir)
	_, err = other.Reconcile(background, ledger.OwnerNRI, []string{"earlier", "c1"})
	require.NoError(t, err)
	assert.Equal(t, map[limiter.TurnID]int{earlier: 70, c.TurnID: 30}, tableOf(t, dir, gpuA))
	require.NoError(t, store.Release(background, "earlier"))
	assert.Equal(t, map[limiter.TurnID]int{c.TurnID: 30}, tableOf(t, dir, gpuA))
}
