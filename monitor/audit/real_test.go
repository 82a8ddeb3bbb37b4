package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/nvidia"
)

// headless has the test's program run as a process with a first thread that ends at once.
const headless = "AUDIT_TEST_HEADLESS"

// mapping makes the process map these files as code, and wait.
const mapping = "AUDIT_TEST_MAPPING"

func TestMain(m *testing.M) {
	if paths := os.Getenv(mapping); paths != "" {
		for _, path := range filepath.SplitList(paths) {
			if _, err := inMapsFor(path); err != nil {
				panic(err)
			}
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	if os.Getenv(headless) == "" {
		os.Exit(m.Run())
	}
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test ends
		os.Exit(0)
	}()
	runtime.LockOSThread() // main's goroutine is on the first thread until here
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

func inMapsFor(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return syscall.Mmap(int(f.Fd()), 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_EXEC, syscall.MAP_PRIVATE)
}

// hierarchies are this machine's control groups, of whichever version it has.
func hierarchies(t *testing.T) map[string]string {
	all := map[string]string{}
	for name, candidates := range map[string][]string{
		"v2": {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
		"v1": {"/sys/fs/cgroup/pids"},
	} {
		for _, root := range candidates {
			if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil {
				all[name] = root
				break
			}
		}
	}
	require.NotEmpty(t, all, "no control groups: run this on a machine that has them in /sys/fs/cgroup, as root")
	return all
}

// join moves a process into a group, which it makes.
func join(t *testing.T, root, name string, pid int) {
	t.Helper()
	dir := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(dir, 0o755), "as root")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		for ; dir != root; dir = filepath.Dir(dir) {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
				t.Error(dir, err)
			}
		}
	})
}

// begin starts a process that waits until the test ends.
func begin(t *testing.T, flags uintptr, command ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(command[0], command[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

// runtimeOf is an Inspector's way to know of containers: those of the namespaces by id.
func runtimeOf(namespaces map[string]string) func(id string) (Container, bool, bool) {
	return func(id string) (Container, bool, bool) {
		namespace, known := namespaces[id]
		return Container{ID: id, Namespace: namespace, Pod: "p", Name: "main"}, namespace == "infra", known
	}
}

func inspector(t *testing.T, namespaces map[string]string) *Inspector {
	i := NewInspector("/proc", t.TempDir(), runtimeOf(namespaces))
	i.mapsTime, i.holderTime = time.Hour, time.Hour
	i.clock = func() time.Time { return time.Time{} }
	i.descriptors.clock = i.clock
	return i
}

// look finds one process that is on a GPU.
func look(t *testing.T, i *Inspector, pid int) Process {
	t.Helper()
	all, err := i.Processes(nil, map[string][]nvidia.Process{gpuA: {{PID: pid, Bytes: 5, Known: true}}}, true)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Equal(t, map[string]Memory{gpuA: {Bytes: 5, Known: true}}, all[0].Devices)
	return all[0]
}

// inProc writes the files of a process in /proc.
func inProc(t *testing.T, proc, pid, group string) (dir string) {
	dir = filepath.Join(proc, pid)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "ns"), 0o755))
	require.NoError(t, os.Symlink("pid:[1]", filepath.Join(dir, "ns/pid")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+group+"\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(pid+" (x) S 1 "+strings.Repeat("0 ", 17)+"500 0\n"), 0o644))
	return dir
}

// withDriver has processes of a container that use the driver without the limiter.
func withDriver(t *testing.T, pids ...string) (*Inspector, map[string]*Claim) {
	proc := t.TempDir()
	for _, pid := range pids {
		dir := inProc(t, proc, pid, "/kubepods/"+idA)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "maps"), []byte("7f00-7f10 r-xp 00000000 00:2a 77 /tmp/libcuda.so.1\n"), 0o644))
	}
	return NewInspector(proc, t.TempDir(), runtimeOf(map[string]string{idA: "default"})),
		map[string]*Claim{idA: {Container: Container{ID: idA}, Dir: t.TempDir()}}
}

// In a control group namespace of its own the agent's container is "/": another process of it
// is ended no more than one of the host's, and others' are still known.
func TestOwnContainerInItsOwnGroupNamespace(t *testing.T) {
	proc := t.TempDir()
	other := strings.Repeat("c", 64)
	for pid, group := range map[string]string{"self": "/", "10": "/", "11": "/inside", "12": "/../" + other} {
		inProc(t, proc, pid, group)
	}
	i := NewInspector(proc, t.TempDir(), runtimeOf(nil))
	require.Empty(t, i.own)
	all, err := i.Processes(nil, map[string][]nvidia.Process{gpuA: {{PID: 10}, {PID: 11}, {PID: 12}}}, true)
	require.NoError(t, err)
	found := map[int]Finding{}
	for _, f := range Find(Snapshot{Processes: all}) {
		found[f.Offenders[0].PID] = f
	}
	require.Len(t, found, 3)
	for _, pid := range []int{10, 11} {
		assert.Equal(t, HostProcess, found[pid].Kind, pid)
		assert.NotEmpty(t, found[pid].Offenders[0].Spared, pid)
	}
	assert.Equal(t, UngrantedProcess, found[12].Kind)
	assert.Equal(t, other, found[12].Container.ID)
}

// Two containers have a claim in common: their memory is one sum, and each process is of its own pod.
func TestProcessesOfACommonClaim(t *testing.T) {
	proc := t.TempDir()
	ids := []string{strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)}
	for i, pid := range []string{"10", "11", "12"} {
		inProc(t, proc, pid, "/kubepods/pod/"+ids[i])
	}
	inProc(t, proc, "self", "/")
	claim := &Claim{
		Container: Container{ID: "common", Pod: "first"}, Uncontrolled: true, Devices: []Device{{UUID: gpuA, LimitBytes: 1 << 30}},
		Members: []Container{{ID: ids[0], Pod: "first"}, {ID: ids[1], Pod: "second"}},
	}
	claims := map[string]*Claim{"common": claim}
	i := NewInspector(proc, t.TempDir(), runtimeOf(nil))
	of := func(pid int) nvidia.Process { return nvidia.Process{PID: pid, Bytes: 3 << 30, Known: true} }
	all, err := i.Processes(claims, map[string][]nvidia.Process{gpuA: {of(10), of(11), of(12)}}, true)
	require.NoError(t, err)
	require.Len(t, all, 3)
	assert.Equal(t, Container{ID: "common", Pod: "first"}, all[0].Container)
	assert.Equal(t, Container{ID: "common", Pod: "second"}, all[1].Container)
	assert.Equal(t, ids[2], all[2].Container.ID)
	claim.Uncontrolled = false
	var over []Finding
	for _, f := range Find(Snapshot{Claims: claims, Processes: all}) {
		if f.Kind == OverLimit {
			over = append(over, f)
		}
	}
	require.Len(t, over, 1)
	assert.Contains(t, over[0].Detail, "6144 MiB")
	assert.Len(t, over[0].Offenders, 2)
}

func TestProcessesThatAreGone(t *testing.T) {
	c := begin(t, 0, "true")
	require.NoError(t, c.Wait())
	i := inspector(t, nil)
	all, err := i.Processes(nil, map[string][]nvidia.Process{gpuA: {{PID: c.Process.Pid}, {PID: 0}, {PID: -4}, {PID: 1 << 30}}}, true)
	require.NoError(t, err)
	assert.Empty(t, all)

	zombie := begin(t, 0, "true")
	for s := (procfs.Status{}); !s.Zombie; {
		s, err = i.proc.Stat(strconv.Itoa(zombie.Process.Pid))
		require.NoError(t, err)
	}
	all, err = i.Processes(nil, map[string][]nvidia.Process{gpuA: {{PID: zombie.Process.Pid}}}, true)
	require.NoError(t, err)
	assert.Empty(t, all)
}

func TestKill(t *testing.T) {
	yes := func() error { return nil }
	c := begin(t, 0, "sleep", "1000")
	p := orphans.Process{PID: c.Process.Pid}
	killed, err := kill(p, func() error { return errProcessChanged })
	assert.ErrorIs(t, err, errProcessChanged)
	assert.False(t, killed)
	killed, err = kill(p, func() error { return syscall.ESRCH })
	assert.NoError(t, err, "it has ended meanwhile")
	assert.False(t, killed)
	killed, err = kill(p, yes)
	assert.NoError(t, err)
	assert.True(t, killed)
	assert.EqualError(t, c.Wait(), "signal: killed")
	killed, err = kill(p, yes)
	assert.NoError(t, err, "there is none any more")
	assert.False(t, killed)

	// The one that was meant ends while it is inspected: no other process gets its signal.
	c = begin(t, 0, "sleep", "1000")
	killed, err = kill(orphans.Process{PID: c.Process.Pid}, func() error {
		_ = c.Process.Kill()
		_ = c.Wait()
		return nil
	})
	assert.NoError(t, err)
	assert.False(t, killed)
}

// A tenant's processes have so many mappings that a look takes too long: each look reads those on a GPU, and some of
// the others, until all are found.
func TestProcessesWithManyMappingsAreLookedAtInTurn(t *testing.T) {
	i, claims := withDriver(t, "10", "11", "12", "13")
	i.restTime = 0 // one of those that are not on a GPU
	seen := map[int]bool{}
	var err error
	for looks := 0; len(seen) < 4; looks++ {
		require.Less(t, looks, 5)
		var all []Process
		all, err = i.Processes(claims, map[string][]nvidia.Process{gpuA: {{PID: 12}}}, looks == 0)
		onGPU := 0
		for _, p := range all {
			seen[p.PID] = true
			onGPU += len(p.Devices)
		}
		require.Equal(t, 1, onGPU)
		if looks == 0 {
			require.ErrorIs(t, err, errLate)
			require.Len(t, all, 2)
		}
	}
	i.restTime = restTime
	all, err := i.Processes(claims, nil, true)
	require.NoError(t, err)
	require.Len(t, all, 4)
}

// The processes of a container have so many mappings that a look takes too long: they delay only that container. With no time
// for one of each container the next look begins with the others.
func TestManyMappingsDelayOnlyTheirContainer(t *testing.T) {
	for _, c := range []struct {
		time  time.Duration
		looks [][]int
	}{
		{5 * time.Second, [][]int{{1, 4, 6, 5, 2}, {3, 4, 6, 5, 1}}},
		{time.Second, [][]int{{1}, {4, 6}, {2}, {5, 6}, {3}}},
	} {
		i := &Inspector{restTime: c.time}
		var now time.Time
		i.clock = func() time.Time { return now }
		owners := map[int]string{1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c"}
		var in turns
		for n, want := range c.looks {
			var seen []int
			i.inTurn(&in, slices.Sorted(maps.Keys(owners)), owners, false, func(pid int) {
				seen = append(seen, pid)
				now = now.Add(map[string]time.Duration{"a": 3 * time.Second, "b": 500 * time.Millisecond, "c": 500 * time.Millisecond}[owners[pid]])
			})
			require.Equal(t, want, seen, "look %d", n)
			require.True(t, in.unfinished())
		}
	}
}

// Processes on a GPU have so many mappings that a look has no time for all. Each look counts the memory of all of them, it
// reads the mappings of some, and keeps the earlier results of the others.
func TestMappingsOfProcessesOnAGPUAreReadInTurn(t *testing.T) {
	i, claims := withDriver(t, "10", "11", "12")
	i.restTime = 0 // the mappings of one
	on := map[string][]nvidia.Process{gpuA: {{PID: 10, Bytes: 1, Known: true}, {PID: 11, Bytes: 1, Known: true}, {PID: 12, Bytes: 1, Known: true}}}
	for looks := 1; looks <= 5; looks++ {
		all, err := i.Processes(claims, on, false)
		require.ErrorIs(t, err, errLate)
		seen, known := observe(&Finding{}, &Claim{Container: Container{ID: idA}}, gpuA, all)
		require.Equal(t, uint64(3), seen)
		require.True(t, known)
		found := 0
		for _, p := range all {
			if p.Limiter == LimiterAbsent {
				found++
			}
		}
		require.Equal(t, min(looks, 3), found)
	}
}

// A process on a GPU is judged by its memory though its mappings can't be read.
func TestMemoryOfAProcessWithTooManyMappingsIsCounted(t *testing.T) {
	i, claims := withDriver(t, "10")
	i.mapsTime = -time.Second
	all, err := i.Processes(claims, map[string][]nvidia.Process{gpuA: {{PID: 10, Bytes: 1 << 40, Known: true}}}, true)
	require.ErrorIs(t, err, errSlowMaps)
	require.Len(t, all, 1)
	require.Equal(t, LimiterUnknown, all[0].Limiter)
	claims[idA].Devices = []Device{{UUID: gpuA, LimitBytes: 1 << 30}}
	found := Find(Snapshot{Claims: claims, Processes: all})
	require.Len(t, found, 1)
	require.Equal(t, OverLimit, found[0].Kind)
}
