//go:build root

package limiter_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const suspendContext, suspendLimit = 24 * miB, 512 * miB

func newSuspendable(t *testing.T) *container {
	t.Helper()
	return newContainerKnowing(t, newMachine(t, "H200:context_mib=24"), suspendContext, gpu{gpuIDs[0], suspendLimit}).inPages(t)
}

func (c *container) simctl(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(built, "sim", "simctl"), append([]string{"--state", c.state}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// ask runs a probe of the same container, in the same namespaces, to the end.
func ask(t *testing.T, c *container, script string, want ...string) (stderr string) {
	t.Helper()
	lines, stderr := c.probe(t, script)
	require.Equal(t, want, lines, stderr)
	return stderr
}

// suspend checkpoints the process by another of its container.
func (s *spoken) suspend(t *testing.T, c *container) {
	t.Helper()
	lines, stderr := c.probe(t, fmt.Sprintf("init lock %[1]d checkpoint %[1]d", s.cmd.Process.Pid))
	require.Equal(t, []string{"init 0", "lock 0", "checkpoint 0"}, lines)
	require.Empty(t, stderr)
}

// What a process that is checkpointed had is free for the others. It is restored when there is room for all of it, and refused
// otherwise.
func TestCheckpointedMemoryIsFree(t *testing.T) {
	c := newSuspendable(t)
	first := speak(t, c, "init ctx 0 alloc 314572800 line")
	first.says(t, "init 0", "ctx 0", "alloc 0")
	first.suspend(t, c)
	assert.Zero(t, c.used(t))
	second := speak(t, c, "init ctx 0 alloc 419430400 info line")
	second.says(t, "init 0", "ctx 0", "alloc 0", fmt.Sprintf("info 0 free %d total %d", suspendLimit-suspendContext-400*miB, suspendLimit))

	restore := fmt.Sprintf("init restore %[1]d unlock %[1]d", first.cmd.Process.Pid)
	lines, stderr := c.probe(t, restore)
	assert.Equal(t, "restore 2", lines[1])
	assert.Equal(t, "gpuslice: a checkpointed process can't be restored: the memory limit has no room for what it had\n", stderr)
	assert.EqualValues(t, suspendContext+400*miB, c.used(t), "what it had still does not count")

	second.cmd.Process.Kill()
	second.cmd.Wait()
	lines, stderr = c.probe(t, restore)
	assert.Equal(t, []string{"init 0", "restore 0", "unlock 0"}, lines)
	assert.Empty(t, stderr)
	assert.EqualValues(t, suspendContext+300*miB, c.used(t))
	lines, _ = c.probe(t, "init ctx 0 alloc 172032001 alloc 171966464")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 2", "alloc 0"}, lines)
	peak, _ := c.peakTotal(t)
	assert.LessOrEqual(t, peak, uint64(suspendLimit))
}

// A process can do it with itself.
func TestProcessSuspendsItself(t *testing.T) {
	c := newSuspendable(t)
	lines, stderr := c.probe(t, "init ctx 0 alloc 314572800 lock 0 checkpoint 0 restore 0 unlock 0 info free 0 info")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "lock 0", "checkpoint 0", "restore 0", "unlock 0",
		fmt.Sprintf("info 0 free %d total %d", suspendLimit-suspendContext-300*miB, suspendLimit), "free 0",
		fmt.Sprintf("info 0 free %d total %d", suspendLimit-suspendContext, suspendLimit)}, lines)
}

// What the driver does not do changes no charge.
func TestRefusedCheckpoints(t *testing.T) {
	c := newSuspendable(t)
	holder := speak(t, c, "init ctx 0 alloc 314572800 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	pid := holder.cmd.Process.Pid
	lines, stderr := c.probe(t, fmt.Sprintf("init checkpoint %[1]d restore %[1]d checkpoint 1 restore 1", pid))
	assert.Equal(t, []string{"init 0", "checkpoint 401", "restore 401", "checkpoint 1", "restore 1"}, lines)
	assert.Empty(t, stderr)
	assert.EqualValues(t, suspendContext+300*miB, c.used(t))
	holder.suspend(t, c)
	fail(t, c, "cuCheckpointProcessRestore")
	lines, _ = c.probe(t, fmt.Sprintf("init restore %d", pid))
	assert.Equal(t, []string{"init 0", "restore 2"}, lines)
	assert.Zero(t, c.used(t), "it is checkpointed still")
}

// One that ends meanwhile leaves nothing, and its slot is the next one's.
func TestCheckpointedProcessEnds(t *testing.T) {
	c := newSuspendable(t)
	for range 3 {
		holder := speak(t, c, "init ctx 0 alloc 314572800 line")
		holder.says(t, "init 0", "ctx 0", "alloc 0")
		holder.suspend(t, c)
		holder.cmd.Process.Kill()
		holder.cmd.Wait()
		lines, _ := c.probe(t, "init ctx 0 alloc 511705088 alloc 511705088")
		assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0", "alloc 2"}, lines, "its memory counts")
	}
}

// suspended is a container with a checkpointed process, which allocates 200 MiB when it reads a line.
func suspended(t *testing.T) (*container, *spoken) {
	t.Helper()
	c := newSuspendable(t)
	holder := speak(t, c, "init ctx 0 alloc 104857600 line alloc 209715200 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	holder.suspend(t, c)
	return c, holder
}

// Its threads charge nothing until it is restored, as they take nothing of the driver.
func TestCheckpointedProcessWaits(t *testing.T) {
	c, holder := suspended(t)
	holder.goOn(t)
	lines, _ := c.probe(t, "init ctx 0 alloc 511705088")
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 0"}, lines)
	lines, _ = c.probe(t, fmt.Sprintf("init restore %[1]d unlock %[1]d", holder.cmd.Process.Pid))
	assert.Equal(t, []string{"init 0", "restore 0", "unlock 0"}, lines)
	holder.says(t, "alloc 0")
	assert.EqualValues(t, suspendContext+300*miB, c.used(t))
}

// One that a tool outside of the container has restored counts again with its next allocation.
func TestRestoredFromOutside(t *testing.T) {
	c, holder := suspended(t)
	ask(t, c.bare(), fmt.Sprintf("init restore %[1]d unlock %[1]d", holder.cmd.Process.Pid), "init 0", "restore 0", "unlock 0")
	holder.goOn(t)
	holder.says(t, "alloc 0")
	assert.EqualValues(t, suspendContext+300*miB, c.used(t))
}

// One that such a tool has restored also counts again with a restore that the driver refuses, whether it fits or not.
func TestRestoredTwice(t *testing.T) {
	c := newSuspendable(t)
	holder := speak(t, c, "init ctx 0 alloc 314572800 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	holder.suspend(t, c)
	other := speak(t, c, "init ctx 0 alloc 314572800 line")
	other.says(t, "init 0", "ctx 0", "alloc 0")
	restore := fmt.Sprintf("init restore %d", holder.cmd.Process.Pid)
	ask(t, c.bare(), restore, "init 0", "restore 0")
	assert.Empty(t, ask(t, c, restore, "init 0", "restore 401"))
	assert.EqualValues(t, 2*(suspendContext+300*miB), c.used(t))
}

// What such a tool has checkpointed stays charged. A restore within the container looks for room all the same; and a checkpoint,
// which the driver refuses, finds that it is one.
func TestCheckpointedFromOutside(t *testing.T) {
	c := newSuspendable(t)
	holder := speak(t, c, "init ctx 0 alloc 314572800 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	pid := holder.cmd.Process.Pid
	ask(t, c.bare(), fmt.Sprintf("init lock %[1]d checkpoint %[1]d", pid), "init 0", "lock 0", "checkpoint 0")
	assert.EqualValues(t, suspendContext+300*miB, c.used(t))
	ask(t, c, fmt.Sprintf("init checkpoint %d", pid), "init 0", "checkpoint 401")
	assert.Zero(t, c.used(t))
	ask(t, c, fmt.Sprintf("init restore %d", pid), "init 0", "restore 0")
	ask(t, c.bare(), fmt.Sprintf("init checkpoint %d", pid), "init 0", "checkpoint 0")
	ask(t, c, fmt.Sprintf("init restore %[1]d unlock %[1]d", pid), "init 0", "restore 0", "unlock 0")
	assert.EqualValues(t, suspendContext+300*miB, c.used(t))
}

// A slot that has become another process's during the driver's call is not marked, nor is that of one that has ended.
func TestMarkIsOfOneProcess(t *testing.T) {
	program := filepath.Join(t.TempDir(), "marks")
	sources := filepath.Join(root, "limiter/src")
	require.NoError(t, compile(program, "testdata/marks.c", "-iquote", sources, filepath.Join(sources, "suspend.c")))
	out, err := exec.Command(program).Output()
	require.NoError(t, err)
	assert.Equal(t, "same 1\nother thread 0\nother start 0\nfree 0\ndead 0\n", string(out))
}

// Other GPUs have limits of their own.
func TestRestoreOnOtherGPUs(t *testing.T) {
	c := newSuspendable(t)
	holder := speak(t, c, "init ctx 0 alloc 314572800 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	holder.suspend(t, c)
	stderr := ask(t, c, fmt.Sprintf("init move %d", holder.cmd.Process.Pid), "init 0", "move 801")
	assert.Equal(t, "gpuslice: a checkpointed process can't be restored on other GPUs within memory limits\n", stderr)
	assert.Zero(t, c.used(t))
}

// exported is the descriptor that a process has just made, in this one.
func exported(t *testing.T, s *spoken) (fd int) {
	t.Helper()
	var number int
	require.True(t, s.lines.Scan())
	_, err := fmt.Sscanf(s.lines.Text(), "export 0 %d", &number)
	require.NoError(t, err, s.lines.Text())
	process, err := unix.PidfdOpen(s.cmd.Process.Pid, 0)
	require.NoError(t, err)
	defer unix.Close(process)
	fd, err = unix.PidfdGetfd(process, number, 0)
	require.NoError(t, err)
	return fd
}

// What the process has exported is there for others still, and counts.
func TestCheckpointedProcessExported(t *testing.T) {
	c := newSuspendable(t)
	c.simctl(t, "set", "driver", "branch=615")
	holder := speak(t, c, "init ctx 0 alloc 104857600 export 209715200 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	descriptor := exported(t, holder)
	holder.suspend(t, c)
	assert.EqualValues(t, 200*miB, c.used(t))
	_, now := c.peakTotal(t)
	assert.EqualValues(t, 200*miB, now, "in the driver too")
	ask(t, c, "init ctx 0 info alloc 302000000 alloc 301989888", "init 0", "ctx 0",
		fmt.Sprintf("info 0 free %d total %d", suspendLimit-suspendContext-200*miB, suspendLimit), "alloc 2", "alloc 0")
	ask(t, c, fmt.Sprintf("init restore %[1]d unlock %[1]d", holder.cmd.Process.Pid), "init 0", "restore 0", "unlock 0")
	assert.EqualValues(t, suspendContext+300*miB, c.used(t))
	holder.suspend(t, c)
	holder.cmd.Process.Kill()
	holder.cmd.Wait()
	ask(t, c, "init ctx 0 alloc 302000000 alloc 301989888", "init 0", "ctx 0", "alloc 2", "alloc 0") // it is reaped, and the descriptor is held
	require.NoError(t, unix.Close(descriptor))
	ask(t, c, "init ctx 0 alloc 511705088", "init 0", "ctx 0", "alloc 0")
	peak, _ := c.peakTotal(t)
	assert.LessOrEqual(t, peak, uint64(suspendLimit))
}

// Each copy of the driver in a process has a slot.
func TestCheckpointedProcessWithNamespaces(t *testing.T) {
	program := filepath.Join(t.TempDir(), "namespaces")
	require.NoError(t, compile(program, "testdata/namespaces.c"))
	c := inFront(t, oneGPU(t, giB))
	holder := &spoken{cmd: c.command(program, "own", "new", "wait")}
	holder.start(t)
	holder.says(t, fmt.Sprintf("own 0 %d 0", giB), fmt.Sprintf("new 0 %d 0", giB))
	pid := holder.cmd.Process.Pid
	ask(t, c, fmt.Sprintf("init lock %[1]d checkpoint %[1]d", pid), "init 0", "lock 0", "checkpoint 0")
	assert.Zero(t, c.used(t))
	other := speak(t, c, "init ctx 0 alloc 268435456 line")
	other.says(t, "init 0", "ctx 0", "alloc 0")
	restore := fmt.Sprintf("init restore %d", pid)
	ask(t, c, restore, "init 0", "restore 2")
	assert.EqualValues(t, 256*miB, c.used(t))
	other.cmd.Process.Kill()
	other.cmd.Wait()
	ask(t, c, restore, "init 0", "restore 0")
	assert.EqualValues(t, 800*miB, c.used(t))
}

// A number is of the caller's PID namespace: each container has a first process.
func TestCheckpointInPIDNamespaces(t *testing.T) {
	c := newSuspendable(t)
	inside := []string{"unshare", "-pf", "--kill-child", "--mount-proc"}
	first := speak(t, c, "init ctx 0 alloc 104857600 line", inside...)
	first.says(t, "init 0", "ctx 0", "alloc 0")
	second := speak(t, c, "init ctx 0 alloc 209715200 line", inside...)
	second.says(t, "init 0", "ctx 0", "alloc 0")
	enter := func(words ...string) ([]string, string) {
		parent := fmt.Sprint(second.cmd.Process.Pid)
		child, err := os.ReadFile("/proc/" + parent + "/task/" + parent + "/children")
		require.NoError(t, err)
		args := []string{"-t", strings.TrimSpace(string(child)), "-p", "-m", filepath.Join(bin, "probe")}
		return c.run(t, "nsenter", append(args, words...)...)
	}
	lines, stderr := enter("init", "lock", "1", "checkpoint", "1")
	require.Equal(t, []string{"init 0", "lock 0", "checkpoint 0"}, lines, stderr)
	assert.EqualValues(t, suspendContext+100*miB, c.used(t), "of the second")
	lines, stderr = enter("init", "restore", "1", "unlock", "1")
	require.Equal(t, []string{"init 0", "restore 0", "unlock 0"}, lines, stderr)
	assert.EqualValues(t, 2*suspendContext+300*miB, c.used(t))

	// From outside of its namespace.
	parent := fmt.Sprint(second.cmd.Process.Pid)
	child, err := os.ReadFile("/proc/" + parent + "/task/" + parent + "/children")
	require.NoError(t, err)
	pid := strings.TrimSpace(string(child))
	c.simctl(t, "status") // by which the driver knows that number
	lines, stderr = c.probe(t, fmt.Sprintf("init lock %[1]s checkpoint %[1]s", pid))
	require.Equal(t, []string{"init 0", "lock 0", "checkpoint 0"}, lines, stderr)
	assert.EqualValues(t, suspendContext+100*miB, c.used(t), "of the second")
	lines, stderr = c.probe(t, fmt.Sprintf("init restore %[1]s unlock %[1]s", pid))
	require.Equal(t, []string{"init 0", "restore 0", "unlock 0"}, lines, stderr)
	assert.EqualValues(t, 2*suspendContext+300*miB, c.used(t))
}

// Where it can't be known which process it is, nothing is done.
func TestCheckpointWithoutProc(t *testing.T) {
	c := newSuspendable(t)
	holder := speak(t, c, "init ctx 0 alloc 104857600 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	pid := fmt.Sprint(holder.cmd.Process.Pid)
	lines, stderr := c.run(t, "unshare", "-m", "sh", "-ec", `mount -t tmpfs none /proc; exec "$@"`, "sh", filepath.Join(bin, "probe"),
		"init", "lock", pid, "checkpoint", pid, "restore", pid, "unlock", pid)
	assert.Equal(t, []string{"init 0", "lock 0", "checkpoint 801", "restore 801", "unlock 0"}, lines)
	assert.Equal(t, "gpuslice: a process can't be checkpointed or restored: /proc does not show which one it is\n", stderr)
}

// The number of a thread is of no process.
func TestCheckpointOfAThread(t *testing.T) {
	c := newSuspendable(t)
	holder := speak(t, c, "init ctx 0 alloc 104857600 line")
	holder.says(t, "init 0", "ctx 0", "alloc 0")
	holder.suspend(t, c)
	pid := fmt.Sprint(holder.cmd.Process.Pid)
	threads, err := os.ReadDir("/proc/" + pid + "/task")
	require.NoError(t, err)
	require.Greater(t, len(threads), 1)
	for _, thread := range threads {
		if thread.Name() != pid {
			ask(t, c, "init restore "+thread.Name(), "init 0", "restore 801")
		}
	}
	assert.Zero(t, c.used(t))
}

// A process that locks a slot's byte keeps others from this process only, and no process waits for it for long.
func TestCheckpointBesideALock(t *testing.T) {
	c := newSuspendable(t)
	first := speak(t, c, "init ctx 0 alloc 104857600 line")
	first.says(t, "init 0", "ctx 0", "alloc 0")
	second := speak(t, c, "init ctx 0 alloc 104857600 line")
	second.says(t, "init 0", "ctx 0", "alloc 0")
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 1<<40 + 1 + 1024, Len: 1}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	stderr := ask(t, c, fmt.Sprintf("init lock %[1]d checkpoint %[1]d restore %[1]d unlock %[1]d", first.cmd.Process.Pid),
		"init 0", "lock 0", "checkpoint 600", "restore 600", "unlock 0")
	assert.Equal(t, "gpuslice: a process can't be checkpointed or restored: another process is doing it, or the usage file can't be locked\n", stderr)
	second.suspend(t, c)
	assert.EqualValues(t, suspendContext+100*miB, c.used(t))
	ask(t, c, fmt.Sprintf("init restore %d", second.cmd.Process.Pid), "init 0", "restore 0")
}

// A child that is forked while a lock is held has its description, and must not keep the lock.
func TestForksBesideCheckpoints(t *testing.T) {
	program := filepath.Join(t.TempDir(), "forks")
	require.NoError(t, compile(program, "testdata/forks.c", "-pthread"))
	c := newSuspendable(t)
	forks := &spoken{cmd: c.command(program)}
	forks.start(t)
	forks.says(t, "done")
	f, err := os.OpenFile(c.usage(), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	for what, lock := range map[string]unix.Flock_t{
		"the slow path's": {Type: unix.F_WRLCK, Start: 1 << 40, Len: 1},
		"checkpoints'":    {Type: unix.F_WRLCK, Start: 1<<40 + 1 + 1024, Len: 1024},
	} {
		require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock))
		assert.EqualValues(t, unix.F_UNLCK, lock.Type, what)
	}
}
