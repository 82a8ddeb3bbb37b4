package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

var background = context.Background()

// openLedger opens a ledger that is closed with the test.
func openLedger(t testing.TB, dir string, options ...ledger.Option) *ledger.Ledger {
	t.Helper()
	ledger, err := ledger.Open(dir, options...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ledger.Close()) })
	return ledger
}

// claimOf is a claim of container "main" of a pod of its own.
func claimOf(id string, shares ...grant.Share) ledger.Claim {
	return ledger.Claim{
		ContainerID: id, Owner: ledger.OwnerNRI, PodUID: "uid-" + id, PodNamespace: "ns", PodName: "pod-" + id,
		Container: "main", Shares: shares, Source: grant.SourceNamed, Mode: "preload",
	}
}

// share is a share of GPU A.
func share(memoryMiB int64, cores int) grant.Share {
	return grant.Share{UUID: gpuA, MemoryMiB: memoryMiB, CorePercent: cores}
}

// snapshot reads the ledger.
func snapshot(t testing.TB, ledger *ledger.Ledger) *ledger.Snapshot {
	t.Helper()
	s, err := ledger.Snapshot(background)
	require.NoError(t, err)
	return s
}

// states returns the state of each entry by id.
func states(s *ledger.Snapshot) map[string]ledger.State {
	out := map[string]ledger.State{}
	for _, e := range s.Entries {
		out[e.ContainerID] = e.State
	}
	return out
}

// directories lists what is under containers, hidden ones too.
func dirs(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "containers"))
	require.NoError(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// writeFiles is a populate that writes two files as the limiter's writer does.
func writeFiles(dir string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "limits"), make([]byte, 4096), 0o444),
		os.WriteFile(filepath.Join(dir, "usage"), make([]byte, 4096), 0o666))
}

func TestClaimIsReadableInItsDir(t *testing.T) {
	dir := t.TempDir()
	began := time.Now()
	store := openLedger(t, dir)
	claimDir, err := store.Claim(background, claimOf("c1", share(8000, 30)), testGPUs(), writeFiles)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "containers", "c1"), claimDir)
	assert.Equal(t, claimDir, store.Dir("c1"))
	for _, name := range []string{"grant.json", "limits", "usage"} {
		assert.FileExists(t, filepath.Join(claimDir, name))
	}
	data, err := os.ReadFile(filepath.Join(claimDir, "grant.json"))
	require.NoError(t, err)
	assert.Contains(t, string(data), `"memoryMiB": 8000`)
	assert.Equal(t, []string{"c1"}, dirs(t, dir))

	again := openLedger(t, dir)
	s := snapshot(t, again)
	require.Len(t, s.Claims(), 1)
	assert.Equal(t, map[string]ledger.Usage{gpuA: {MemoryMiB: 8000, CorePercent: 30, Replicas: 1}}, s.GPUs)
	assert.WithinRange(t, s.Claims()[0].CreatedAt, began, time.Now())
}

func TestClaimAgain(t *testing.T) {
	store := openLedger(t, t.TempDir())
	first, err := store.Claim(background, claimOf("c1", share(8000, 30)), testGPUs(), nil)
	require.NoError(t, err)
	second, err := store.Claim(background, claimOf("c1", share(8000, 30)), testGPUs(), func(string) error { return errors.New("must not be called") })
	require.NoError(t, err)
	assert.Equal(t, first, second)

	_, err = store.Claim(background, claimOf("c1", share(8001, 30)), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrConflict)
	assert.EqualValues(t, 8000, snapshot(t, store).GPUs[gpuA].MemoryMiB)
}

func TestOverbooking(t *testing.T) {
	gpus := map[string]grant.GPU{
		gpuA: {UUID: gpuA, MemoryMiB: 1000, CorePercent: 100, Replicas: 3},
		gpuB: {UUID: gpuB, MemoryMiB: 1000, CorePercent: 100, Replicas: 0},
	}
	tests := []struct {
		description string
		reserved    []grant.Share
		asked       []grant.Share
		says        string
	}{
		{"exactly what is left", []grant.Share{share(600, 60)}, []grant.Share{share(400, 40)}, ""},
		{"memory", []grant.Share{share(600, 10)}, []grant.Share{share(401, 10)}, "memory 401 MiB requested, 400 of 1000 MiB free"},
		{"cores", []grant.Share{share(100, 60)}, []grant.Share{share(100, 41)}, "cores 41 % requested, 40 of 100 % free"},
		{"no cores asked of a GPU without any", []grant.Share{share(100, 100)}, []grant.Share{share(100, 0)}, ""},
		{"replicas", []grant.Share{share(1, 1), share(1, 1), share(1, 1)}, []grant.Share{share(1, 1)}, "no replica free, 3 of 3 taken"},
		{"a GPU without replicas", nil, []grant.Share{{UUID: gpuB, MemoryMiB: 1, CorePercent: 1}}, "no replica free, 0 of 0 taken; containers that hold it: 0"},
		{"more than the GPU", nil, []grant.Share{share(1001, 1)}, "has 1000 MiB to grant"},
		{"the second GPU", nil, []grant.Share{share(1, 1), {UUID: gpuB, MemoryMiB: 1, CorePercent: 1}}, gpuB},
	}
	for _, test := range tests {
		t.Run(test.description, func(t *testing.T) {
			dir := t.TempDir()
			ledger := openLedger(t, dir)
			for i, s := range test.reserved {
				_, err := ledger.Claim(background, claimOf(fmt.Sprint("c", i), s), gpus, nil)
				require.NoError(t, err)
			}
			before := snapshot(t, ledger)
			_, err := ledger.Claim(background, claimOf("new", test.asked...), gpus, nil)
			if test.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, grant.ErrOverbooked)
			assert.ErrorContains(t, err, test.says)
			assert.ErrorContains(t, err, `pod ns/pod-new container "main": GPU `)
			assert.Equal(t, before, snapshot(t, ledger))
			assert.Equal(t, before, snapshot(t, openLedger(t, dir)))
		})
	}
}

// A refusal becomes an event of the pod, which its tenant reads: it must not name
// the pods of others.
func TestOverbookingNamesNoOtherTenant(t *testing.T) {
	ledger := openLedger(t, t.TempDir())
	for i := range 8 {
		_, err := ledger.Claim(background, claimOf(fmt.Sprint("c", i), share(int64(1000+i), 1)), testGPUs(), nil)
		require.NoError(t, err)
	}
	_, err := ledger.Claim(background, claimOf("new", share(100_000, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked)
	assert.ErrorContains(t, err, "containers that hold it: 8")
	assert.NotContains(t, err.Error(), "pod-c")
}

func TestReleaseAndRemove(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	_, err := store.Claim(background, claimOf("c1", share(60_000, 30)), testGPUs(), writeFiles)
	require.NoError(t, err)
	for range 2 { // idempotent
		require.NoError(t, store.Release(background, "c1"))
		assert.Equal(t, map[string]ledger.State{"c1": ledger.StateReleased}, states(snapshot(t, store)))
		assert.Equal(t, map[string]ledger.State{"c1": ledger.StateReleased}, states(snapshot(t, openLedger(t, dir))))
		assert.Empty(t, snapshot(t, store).GPUs)
		assert.FileExists(t, filepath.Join(store.Dir("c1"), "usage"), "the container may still map it")
	}
	_, err = store.Claim(background, claimOf("c2", share(60_000, 30)), testGPUs(), nil)
	require.NoError(t, err, "what was released can be reserved")
	for range 2 {
		require.NoError(t, store.Remove(background, "c1"))
		assert.Equal(t, []string{"c2"}, dirs(t, dir))
	}
	require.NoError(t, store.Remove(background, "c2"), "without a release")
	assert.Empty(t, dirs(t, dir))
	assert.Empty(t, snapshot(t, store).GPUs)
	require.NoError(t, store.Release(background, "never-seen"))
	require.NoError(t, store.Remove(background, "never-seen"))
}

func TestReleasedContainerIsCreatedAgain(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	_, err := ledger.Claim(background, claimOf("c1", share(1000, 30)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, ledger.Release(background, "c1"))
	_, err = ledger.Claim(background, claimOf("c1", share(2000, 30)), testGPUs(), writeFiles)
	require.NoError(t, err)
	assert.EqualValues(t, 2000, snapshot(t, openLedger(t, dir)).GPUs[gpuA].MemoryMiB)
	assert.Equal(t, []string{"c1"}, dirs(t, dir))
	assert.NoFileExists(t, filepath.Join(ledger.Dir("c1"), "released.json"))
}

func TestNextAttemptTakesThePlace(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	attempt := func(id string) ledger.Claim {
		c := claimOf(id, share(80_000, 80))
		c.PodUID = "uid"
		return c
	}
	_, err := store.Claim(background, attempt("n0"), testGPUs(), writeFiles)
	require.NoError(t, err)
	_, err = store.Claim(background, attempt("n1"), testGPUs(), writeFiles)
	require.NoError(t, err, "the predecessor's Stop may come later")

	want := map[string]ledger.State{"n0": ledger.StateReleased, "n1": ledger.StateActive}
	assert.Equal(t, want, states(snapshot(t, store)))
	assert.Equal(t, want, states(snapshot(t, openLedger(t, dir))), "another process knows too")
	assert.FileExists(t, filepath.Join(store.Dir("n0"), "usage"))

	require.NoError(t, store.Release(background, "n0"), "the late Stop")
	require.NoError(t, store.Remove(background, "n0"))
	assert.EqualValues(t, 80_000, snapshot(t, store).GPUs[gpuA].MemoryMiB)

	for _, other := range []func(*ledger.Claim){
		func(c *ledger.Claim) { c.PodUID = "other" },
		func(c *ledger.Claim) { c.Container = "other" },
		func(c *ledger.Claim) { c.Owner = ledger.OwnerRuntime },
		func(c *ledger.Claim) { c.PodUID = "" },
	} {
		c := attempt("x")
		other(&c)
		_, err := store.Claim(background, c, testGPUs(), nil)
		require.ErrorIs(t, err, grant.ErrOverbooked, "only an attempt of the same container takes the place")
	}
}

func TestRefusedAttemptLeavesThePredecessor(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	first, second := claimOf("n0", share(80_000, 80)), claimOf("n1", share(80_000, 80))
	second.PodUID = first.PodUID
	_, err := store.Claim(background, first, testGPUs(), nil)
	require.NoError(t, err)
	_, err = store.Claim(background, second, testGPUs(), func(string) error { return errors.New("no") })
	require.Error(t, err)
	assert.Equal(t, map[string]ledger.State{"n0": ledger.StateActive}, states(snapshot(t, openLedger(t, dir))))
}

func TestPositionBelongsToOneContainer(t *testing.T) {
	store := openLedger(t, t.TempDir())
	inPod := func(id, container string, position *int) ledger.Claim {
		c := claimOf(id, share(100, 1))
		c.PodUID, c.Container, c.Position, c.Source = "uid", container, position, grant.SourceHAMi
		return c
	}
	_, err := store.Claim(background, inPod("c1", "main", new(0)), testGPUs(), nil)
	require.NoError(t, err)
	_, err = store.Claim(background, inPod("c2", "debugger", new(0)), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrPositionTaken)
	assert.ErrorContains(t, err, `position 0 of the pod's grant belongs to container "main"`)
	_, err = store.Claim(background, inPod("c2", "side", new(1)), testGPUs(), nil)
	require.NoError(t, err)
	_, err = store.Claim(background, inPod("c3", "named", nil), testGPUs(), nil)
	require.NoError(t, err)

	require.NoError(t, store.Release(background, "c1"))
	_, err = store.Claim(background, inPod("c4", "debugger", new(0)), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrPositionTaken, "main may come back as long as it is not removed")
	_, err = store.Claim(background, inPod("c5", "main", new(0)), testGPUs(), nil)
	require.NoError(t, err)
}

// Containers can have one name, commands of the host not.
func TestNameOfOneCommand(t *testing.T) {
	dir := t.TempDir()
	store := openLedger(t, dir)
	named := func(id, name string, process bool) ledger.Claim {
		c := claimOf(id, share(100, 1))
		c.PodUID, c.Owner, c.Container, c.Process = "", ledger.OwnerRuntime, name, process
		return c
	}
	for _, c := range []struct {
		claim ledger.Claim
		want  error
	}{
		{named("c1", "train", false), nil},
		{named("p1", "train", true), nil},
		{named("p1", "train", true), nil},
		{named("p2", "train", true), ledger.ErrNameTaken},
		{named("p2", "other", true), nil},
		{named("c2", "train", false), nil},
	} {
		_, err := store.Claim(background, c.claim, testGPUs(), nil)
		require.ErrorIs(t, err, c.want)
	}
	require.NoError(t, store.Release(background, "p1"))
	_, err := store.Claim(background, named("p3", "train", true), testGPUs(), nil)
	require.NoError(t, err)
	_, err = openLedger(t, dir).Claim(background, named("p4", "train", true), testGPUs(), nil)
	require.ErrorIs(t, err, ledger.ErrNameTaken)
}

func TestContainerIDs(t *testing.T) {
	ledger := openLedger(t, t.TempDir())
	for _, id := range []string{"", ".", "..", ".new-x", "-x", "a/b", "../x", "a b", "a\x00b", "ä", strings.Repeat("a", 129)} {
		_, err := ledger.Claim(background, claimOf(id, share(1, 1)), testGPUs(), nil)
		require.ErrorIs(t, err, grant.ErrMalformed, "%q", id)
		require.ErrorIs(t, ledger.Release(background, id), grant.ErrMalformed, "%q", id)
		require.ErrorIs(t, ledger.Remove(background, id), grant.ErrMalformed, "%q", id)
	}
	for _, id := range []string{"a", "A.b_c-9", strings.Repeat("f", 64), strings.Repeat("a", 128)} {
		_, err := ledger.Claim(background, claimOf(id, share(1, 1)), testGPUs(), nil)
		require.NoError(t, err, "%q", id)
	}
}

func TestFailedPopulateLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	broken := errors.New("broken")
	_, err := ledger.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), func(dir string) error {
		return errors.Join(writeFiles(dir), broken)
	})
	require.ErrorIs(t, err, broken)
	assert.Empty(t, dirs(t, dir))
	assert.Empty(t, snapshot(t, ledger).Entries)
}

func TestContextEndsBeforeTheCommit(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	ctx, cancel := context.WithCancel(background)
	_, err := ledger.Claim(ctx, claimOf("c1", share(1, 1)), testGPUs(), func(string) error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, dirs(t, dir))
	assert.Empty(t, snapshot(t, ledger).Entries)
}

func TestLockHeldByAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	ledger := openLedger(t, dir)
	other, err := os.Open(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		began := time.Now()
		_, err := ledger.Claim(ctx, claimOf("c1", share(1, 1)), testGPUs(), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, filepath.Join(dir, "lock"))
		assert.Equal(t, time.Minute, time.Since(began), "it waits for the lock until its context ends")
	})

	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
	_, err = ledger.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), nil)
	require.NoError(t, err)
}

func TestTwoLedgersOfOneDirectory(t *testing.T) {
	dir := t.TempDir()
	agent, wrapper := openLedger(t, dir), openLedger(t, dir)
	_, err := agent.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	_, err = wrapper.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked)
	require.NoError(t, agent.Release(background, "c1"))
	_, err = wrapper.Claim(background, claimOf("c2", share(60_000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	_, err = agent.Claim(background, claimOf("c3", share(60_000, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked)
	require.NoError(t, wrapper.Remove(background, "c2"))
	_, err = agent.Claim(background, claimOf("c3", share(60_000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	assert.Equal(t, snapshot(t, agent), snapshot(t, wrapper))
}

func TestDirectoryIsLost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	agent, wrapper := openLedger(t, dir), openLedger(t, dir)
	_, err := agent.Claim(background, claimOf("c1", share(60_000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	_, err = agent.Claim(background, claimOf("c2", share(70_000, 1)), testGPUs(), nil)
	require.NoError(t, err)
	_, err = wrapper.Claim(background, claimOf("c3", share(70_000, 1)), testGPUs(), nil)
	require.ErrorIs(t, err, grant.ErrOverbooked, "both must use the new lock and the new directories")
	assert.Equal(t, []string{"c2"}, dirs(t, dir))
}

const (
	gpuA = "GPU-0a000000-1111-2222-3333-444455556666"
	gpuB = "GPU-0b000000-1111-2222-3333-444455556666"
	gpuC = "GPU-0c000000-1111-2222-3333-444455556666"
	gpuX = "GPU-0d000000-1111-2222-3333-444455556666"
)

// testGPUs are a node with three GPUs of 100,000 MiB.
func testGPUs() map[string]grant.GPU {
	gpus := map[string]grant.GPU{}
	for _, uuid := range []string{gpuA, gpuB, gpuC} {
		gpus[uuid] = grant.GPU{UUID: uuid, MemoryMiB: 100_000, CorePercent: 100, Replicas: 10}
	}
	return gpus
}

func TestMIGDeviceHasOneContainer(t *testing.T) {
	const mig = "MIG-11111111-0000-4000-8000-000000000001"
	store, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	claim := func(id string, memory int64, cores int) error {
		_, err := store.Claim(t.Context(), ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerNRI, PodUID: id, Container: "main",
			Shares: []grant.Share{{UUID: mig, MemoryMiB: memory, CorePercent: cores}},
		}, map[string]grant.GPU{mig: {UUID: mig, MemoryMiB: 9_856, CorePercent: 100, Replicas: 1}}, nil)
		return err
	}
	require.NoError(t, claim("first", 1000, 0))
	err = claim("second", 1, 0)
	require.ErrorIs(t, err, grant.ErrOverbooked)
	require.ErrorContains(t, err, "no replica free, 1 of 1 taken")
	require.NoError(t, store.Release(t.Context(), "first"))
	require.NoError(t, claim("second", 9856, 100))
}

// The scheduler counts the claims of its pods by their annotations, so the node reports only the others.
func TestUnplaced(t *testing.T) {
	l := openLedger(t, t.TempDir())
	claim := func(id, owner string, source grant.Source) {
		c := claimOf(id, share(1000, 10))
		c.Owner, c.Source = owner, source
		_, err := l.Claim(background, c, testGPUs(), writeFiles)
		require.NoError(t, err)
	}
	claim("pod", ledger.OwnerNRI, grant.SourceNamed)
	claim("hami", ledger.OwnerNRI, grant.SourceHAMi)
	claim("docker", ledger.OwnerRuntime, "")
	claim("replica", ledger.OwnerNRI, grant.SourceReplicas)
	claim("gone", ledger.OwnerRuntime, "")
	require.NoError(t, l.Release(background, "gone"))
	unplaced, err := l.Unplaced(background)
	require.NoError(t, err)
	require.Equal(t, map[string]ledger.Usage{gpuA: {MemoryMiB: 2000, CorePercent: 20, Replicas: 2}}, unplaced)
}
