package ledger_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// readOnly reads a ledger without changing it.
func readOnly(t testing.TB, dir string, options ...ledger.Option) *ledger.Snapshot {
	t.Helper()
	reader, err := ledger.OpenReadOnly(dir, options...)
	require.NoError(t, err)
	s, err := reader.Snapshot(background)
	require.NoError(t, err)
	return s
}

// everyState fills a ledger with an entry of each state, and with what an
// interrupted change and others left in it.
func everyState(t *testing.T, dir string) {
	store := openLedger(t, dir)
	for _, id := range []string{"active", "released", "corrupt", "bad-released"} {
		_, err := store.Claim(background, claimOf(id, share(1000, 1)), testGPUs(), writeFiles)
		require.NoError(t, err)
	}
	require.NoError(t, store.Release(background, "released"))
	require.NoError(t, store.Release(background, "bad-released"))
	require.NoError(t, store.Block(background, "blocking", ledger.OwnerNRI, "why"))
	require.NoError(t, os.Truncate(filepath.Join(store.Dir("corrupt"), "grant.json"), 3))
	require.NoError(t, os.Truncate(filepath.Join(store.Dir("bad-released"), "released.json"), 3))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "containers", "empty"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "containers", ".new-x"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "containers", "README"), nil, 0o644))
}

func TestReaderChangesNothing(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		t.Run(fmt.Sprint("interrupted ", interrupted), func(t *testing.T) {
			dir := t.TempDir()
			everyState(t, dir)
			if interrupted {
				interrupt(t, dir)
			}
			before := nodetest.Tree(t, dir)
			s := readOnly(t, dir)
			assert.Equal(t, before, nodetest.Tree(t, dir))
			assert.Equal(t, interrupted, s.Unsettled)
			s.Unsettled = false
			assert.Equal(t, snapshot(t, openLedger(t, dir)), s, "as a ledger reads it")
			assert.Equal(t, map[string]ledger.State{
				"active": ledger.StateActive, "released": ledger.StateReleased, "bad-released": ledger.StateReleased,
				"corrupt": ledger.StateCorrupt, "blocking": ledger.StateBlocking,
			}, states(s))
		})
	}
}

func TestReaderMakesNoLedger(t *testing.T) {
	empty := t.TempDir()
	before := nodetest.Tree(t, empty)
	file := filepath.Join(t.TempDir(), "containers")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{filepath.Join(empty, "none"), empty, filepath.Dir(file), file} {
		_, err := ledger.OpenReadOnly(dir)
		require.ErrorContains(t, err, "has gpuslice-agent run on this node?")
		require.ErrorContains(t, err, dir)
	}
	assert.Equal(t, before, nodetest.Tree(t, empty))
}

func TestReaderOfALedgerThatGoesAway(t *testing.T) {
	dir := t.TempDir()
	everyState(t, dir)
	reader, err := ledger.OpenReadOnly(dir)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "containers")))
	_, err = reader.Snapshot(background)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.NoDirExists(t, filepath.Join(dir, "containers"))
}

// TestReaderWaitsForNoLock: a suspended agent does not keep people from looking.
func TestReaderWaitsForNoLock(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, claimOn(openLedger(t, dir), "c1", gpuA))
	lock, err := os.Open(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	assert.Len(t, readOnly(t, dir).Claims(), 1)
}

func TestReaderEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, claimOn(openLedger(t, dir), "c1", gpuA))
	interrupt(t, dir)
	reader, err := ledger.OpenReadOnly(dir)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(background)
	cancel()
	_, err = reader.Snapshot(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// readAndSuspend reads a ledger and stops its own process in the middle, once: it reads again when it continues, because
// the ledger was changed. The signal is for the thread that reads: another one can get it when the reader has ended.
func readAndSuspend(dir string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var suspend sync.Once
	reader, err := ledger.OpenReadOnly(filepath.Join(dir, "state"), ledger.WithRecovery(func(string) (ledger.Claim, error) {
		var err error
		suspend.Do(func() { err = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) })
		return ledger.Claim{Shares: []grant.Share{share(1, 1)}}, err
	}))
	if err != nil {
		return err
	}
	_, err = reader.Snapshot(background)
	return err
}

// TestSuspendedReaderBlocksNoClaim: a user presses Ctrl-Z in "gpuslice status".
func TestSuspendedReaderBlocksNoClaim(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	require.NoError(t, claimOn(openLedger(t, state), "corrupt", gpuA))
	require.NoError(t, os.Truncate(filepath.Join(state, "containers", "corrupt", "grant.json"), 3))
	command := startHelper(t, "suspended reader", dir, "")
	require.NoError(t, unix.Waitid(unix.P_PID, command.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil))
	require.Equal(t, "T", processState(command.Process.Pid), "it is suspended")

	store := openLedger(t, state, ledger.WithRecovery(func(string) (ledger.Claim, error) { return ledger.Claim{Shares: []grant.Share{share(1, 1)}}, nil }))
	_, err := store.Claim(background, claimOf("c1", share(1, 1)), testGPUs(), writeFiles)
	require.NoError(t, err)
	require.NoError(t, store.Remove(background, "c1"))
	_, err = store.Reconcile(background, ledger.OwnerNRI, nil)
	require.NoError(t, err)
	require.Equal(t, "T", processState(command.Process.Pid), "it is suspended all the while")
	require.NoError(t, command.Process.Signal(unix.SIGCONT))
	require.NoError(t, command.Wait())
}

// processState is the letter of /proc/<pid>/stat.
func processState(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(data), ") ")
	return after[:1]
}

// TestReaderSeesOneMoment: a container is replaced by its next attempt again and
// again, and the reader always sees one of them, and one only.
func TestReaderSeesOneMoment(t *testing.T) {
	dir := shmDir(t)
	store := openLedger(t, dir)
	attempt := func(n int) ledger.Claim {
		c := claimOf(fmt.Sprint("n", n), share(1000, 1))
		c.PodUID = "uid"
		return c
	}
	_, err := store.Claim(background, attempt(0), testGPUs(), writeFiles)
	require.NoError(t, err)
	done := make(chan error)
	ctx, cancel := context.WithCancel(background)
	go func() {
		for n := 1; ctx.Err() == nil; n++ {
			if _, err := store.Claim(background, attempt(n), testGPUs(), writeFiles); err != nil {
				done <- err
				return
			}
			if err := store.Remove(background, fmt.Sprint("n", n-1)); err != nil {
				done <- err
				return
			}
			time.Sleep(500 * time.Microsecond)
		}
		done <- nil
	}()
	settled := 0
	for range 200 {
		if s := readOnly(t, dir); !s.Unsettled {
			settled++
			assert.EqualValues(t, 1000, s.GPUs[gpuA].MemoryMiB)
		}
	}
	cancel()
	require.NoError(t, <-done)
	assert.Greater(t, settled, 150)
}
