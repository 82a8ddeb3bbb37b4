//go:build root

package limiter

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// mountTurns mounts the turn files' file system in a new state directory.
func mountTurns(t *testing.T) (state string) {
	t.Helper()
	state = t.TempDir()
	require.NoError(t, vgpufs.MountTurns(state))
	require.NoError(t, vgpufs.MountTurns(state), "once")
	t.Cleanup(func() { require.NoError(t, vgpufs.UnmountTurns(state)) })
	return state
}

func free(t *testing.T, state string) (pages, inodes uint64) {
	t.Helper()
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(vgpufs.TurnsDir(state), &fs))
	return fs.Bfree, fs.Ffree
}

func requireNoRoom(t *testing.T, state string) {
	t.Helper()
	pages, inodes := free(t, state)
	require.Zero(t, pages)
	require.Zero(t, inodes)
}

// asAgent calls do with the capabilities that the chart gives the agent.
func asAgent(t *testing.T, do func()) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	data[0].Effective = 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT
	data[0].Permitted = data[0].Effective
	var err error
	var agent sync.WaitGroup
	agent.Go(func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err = unix.Capset(&header, &data[0]); err == nil {
			do()
		}
	})
	agent.Wait()
	require.NoError(t, err)
}

func TestTurnsByTheAgent(t *testing.T) {
	state, id := mountTurns(t), TurnIDOf("c1", "")
	asAgent(t, func() {
		if assert.NoError(t, CreateTurns(state, []string{turnGPU}, id, true)) {
			assert.NoError(t, CreateTurns(state, []string{turnGPU}, id, true))
			assert.Empty(t, trimTurns(t, nil, state))
			assert.NoError(t, RemoveTurns(state, []string{turnGPU}, id))
		}
	})
	assert.NoFileExists(t, TurnPath(state, turnGPU, id))
}

func gpuNumber(i int) string { return fmt.Sprintf("GPU-%08x-5151-4000-8000-000000000001", i) }

func TestTurnsHaveNoRoomForTenants(t *testing.T) {
	state := mountTurns(t)
	for i := range 40 {
		gpus := []string{gpuNumber(i % 4), gpuNumber(i%4 + 10)}
		require.NoError(t, CreateTurns(state, gpus, TurnID(i+1), true))
		requireNoRoom(t, state)
	}
	path := TurnPath(state, gpuNumber(0), 1)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	written, err := file.WriteAt(make([]byte, 1<<20), turnBytes)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Zero(t, written)
	for i := range 40 {
		require.NoError(t, RemoveTurns(state, []string{gpuNumber(i % 4), gpuNumber(i%4 + 10)}, TurnID(i+1)))
		if i < 39 {
			requireNoRoom(t, state)
		}
	}
}

// A container that writes behind the end of its file all the time takes room that is for others. They are created all
// the same, and what it took is cut.
func TestTurnsBesideATenantThatFills(t *testing.T) {
	state, hostile := mountTurns(t), TurnIDOf("hostile", "")
	require.NoError(t, CreateTurns(state, []string{turnGPU}, hostile, true))
	var tenants sync.WaitGroup
	var stop atomic.Bool
	var took atomic.Int64
	for range 4 {
		tenants.Go(func() {
			file, err := os.OpenFile(TurnPath(state, turnGPU, hostile), os.O_RDWR, 0)
			if !assert.NoError(t, err) {
				return
			}
			defer file.Close()
			block := make([]byte, 64<<10)
			for at := turnBytes; !stop.Load(); {
				n, err := file.WriteAt(block, at)
				took.Add(int64(n))
				if at += int64(n); err != nil && !errors.Is(err, unix.ENOSPC) {
					assert.NoError(t, err)
					return
				}
				_ = unix.Setxattr(file.Name(), fmt.Sprint("user.", at), block[:100], 0) // what Linux before 6.6 has not
			}
		})
	}
	for i := range 200 {
		require.NoError(t, CreateTurns(state, []string{gpuNumber(i % 3)}, TurnID(i+1), true))
	}
	stop.Store(true)
	tenants.Wait()
	t.Logf("the container took %d bytes in all", took.Load())
	assert.NoError(t, trimTurns(t, nil, state)[hostile])
	assert.Empty(t, trimTurns(t, nil, state), "cut twice")
	requireNoRoom(t, state)
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(vgpufs.TurnsDir(state), &fs))
	assert.EqualValues(t, 4*3+201, fs.Blocks, "a page for each file, and four for each table")
}

// Whatever a container does with its file, the host does not wait, and others are created.
func TestTurnsBesideATenantThatLocksAndLeases(t *testing.T) {
	state, hostile := mountTurns(t), TurnIDOf("hostile", "")
	require.NoError(t, CreateTurns(state, []string{turnGPU}, hostile, true))
	path := TurnPath(state, turnGPU, hostile)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	require.NoError(t, unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	require.NoError(t, file.Truncate(0))
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	require.NoError(t, err, "this test has CAP_LEASE")
	// The directory of the GPU is mounted into the container, and can be locked.
	dir, err := os.Open(TurnsDirOf(state, turnGPU))
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX))

	require.NoError(t, CreateTurns(state, []string{turnGPU}, 7, true))
	require.NoError(t, writeTable(TablePath(state, turnGPU), Table{Shares: []TableShare{{ID: 7}}}))
	require.ErrorIs(t, trimTurns(t, nil, state)[hostile], ErrLeased)
	_, err = ReadTurn(state, turnGPU, hostile)
	require.Error(t, err)
	require.NoError(t, RemoveTurns(state, []string{turnGPU}, hostile))
	require.NoFileExists(t, path)
	requireNoRoom(t, state)
}

// Two processes of the host, which open the file system separately, make room at once.
func TestTurnsOfSeveralHostProcesses(t *testing.T) {
	state := mountTurns(t)
	var hosts sync.WaitGroup
	for host := range 4 {
		hosts.Go(func() {
			for i := range 50 {
				id, gpus := TurnID(1000*host+i+1), []string{gpuNumber(host%2 + 5), turnGPU}
				assert.NoError(t, CreateTurns(state, gpus, id, true))
				if i%2 == 0 {
					assert.NoError(t, RemoveTurns(state, gpus, id))
				}
			}
		})
	}
	hosts.Wait()
	requireNoRoom(t, state)
	files := 0
	require.NoError(t, EachTurn(state, func(string, TurnID) { files++ }))
	assert.Equal(t, 4*25*2, files)
}

// grow makes a turn file longer, as a container does that finds room.
func grow(t *testing.T, state, path string) {
	t.Helper()
	require.NoError(t, vgpufs.WithRoom(state, 300, func() error { return nil }, func() error {
		return os.WriteFile(path, make([]byte, 1<<20), 0o666)
	}))
}

// A container that gives its file to another user shuts out an agent without CAP_DAC_OVERRIDE and CAP_FOWNER.
func TestTurnsBesideATenantThatShutsOut(t *testing.T) {
	state := mountTurns(t)
	held, other := TurnIDOf("held", ""), TurnIDOf("other", "")
	var h Holder
	defer h.Close()
	asAgent(t, func() { assert.NoError(t, h.CreateTurns(state, []string{turnGPU}, held, true)) })
	require.NoError(t, CreateTurns(state, []string{turnGPU}, other, true))
	for _, id := range []TurnID{held, other} {
		path := TurnPath(state, turnGPU, id)
		grow(t, state, path)
		require.NoError(t, os.Chown(path, 1000, 1000))
		require.NoError(t, os.Chmod(path, 0))
	}
	asAgent(t, func() {
		found := trimTurns(t, &h, state)
		assert.Len(t, found, 2)
		assert.NoError(t, found[held])
		assert.ErrorIs(t, found[other], unix.EACCES, "reported all the same")
		assert.ErrorIs(t, h.FollowTurns(state), unix.EACCES)
		assert.NoError(t, h.CreateTurns(state, []string{turnGPU}, 7, true))
		assert.NoError(t, h.RemoveTurns(state, []string{turnGPU}, other))
	})
	requireNoRoom(t, state)
	assert.EqualValues(t, turnBytes, size(t, TurnPath(state, turnGPU, held)))
	assert.NoFileExists(t, TurnPath(state, turnGPU, other))
	assert.Empty(t, trimTurns(t, &h, state))
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}

// Without an agent a lease keeps the host from cutting the file. It gets no more than a bounded amount with each
// container that is created.
func TestTurnsBesideATenantThatFillsWithALease(t *testing.T) {
	state, hostile := mountTurns(t), TurnIDOf("hostile", "")
	require.NoError(t, CreateTurns(state, []string{turnGPU}, hostile, true))
	path := TurnPath(state, turnGPU, hostile)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, setLease(file, unix.F_WRLCK))
	require.NoError(t, vgpufs.WithRoom(state, 1, func() error { return nil }, func() error {
		_, err := file.WriteAt(make([]byte, 4096), turnBytes)
		return err
	}))
	var stop atomic.Bool
	var tenant sync.WaitGroup
	tenant.Go(func() {
		block := make([]byte, 1<<20)
		for at := turnBytes; !stop.Load(); {
			n, _ := file.WriteAt(block, at)
			at += int64(n)
		}
	})
	const mostRoom = 4 << 20
	for i := range 10 {
		was := size(t, path)
		if err := CreateTurns(state, []string{gpuNumber(i)}, TurnID(i+1), true); err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
		}
		assert.LessOrEqual(t, size(t, path)-was, int64(mostRoom))
	}
	stop.Store(true)
	tenant.Wait()
	require.ErrorIs(t, trimTurns(t, nil, state)[hostile], ErrLeased)
}
