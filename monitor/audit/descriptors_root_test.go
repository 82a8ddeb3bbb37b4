//go:build root

package audit

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openAs opens a device node with another name.
func openAs(t *testing.T, minor uint32, flags int) *os.File {
	path := filepath.Join(t.TempDir(), "innocent")
	require.NoError(t, unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(memoryMajor, minor))), "as root")
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// holding starts a process that has these files open.
func holding(t *testing.T, files ...*os.File) int {
	c := exec.Command("sleep", "1000")
	c.ExtraFiles = files
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c.Process.Pid
}

func TestDescriptors(t *testing.T) {
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	first, second, other := openAs(t, fullMinor, unix.O_RDWR), openAs(t, zeroMinor, unix.O_RDONLY), openAs(t, randomMinor, unix.O_RDONLY)
	two, none := holding(t, null, first, second, first), holding(t, null, other)
	d := newDescriptors("/proc")
	found, err := d.search([]int{two, none, 1 << 30}, nodes, true, time.Minute)
	require.NoError(t, err)
	assert.Equal(t, map[int][]uint64{two: {deviceB, deviceA}}, found)
	assert.ElementsMatch(t, []uint64{deviceA, deviceB}, d.of(two), "one descriptor of each")
	assert.Empty(t, d.of(none))

	process, err := os.FindProcess(two)
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	_, _ = process.Wait()
	found, err = d.search([]int{none}, nodes, true, time.Minute)
	require.NoError(t, err)
	assert.Empty(t, found)
	assert.Empty(t, d.held)
}

// With very many open files, earlier results stay, and the search continues where it ended.
func TestDescriptorsOfAFlood(t *testing.T) {
	files := make([]*os.File, mostOpen+100)
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	for i := range files {
		files[i] = null
	}
	files[len(files)-1] = openAs(t, zeroMinor, unix.O_RDONLY)
	before := unix.Rlimit{}
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	if before.Cur < mostOpen+1000 {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: mostOpen + 1000, Max: max(before.Max, mostOpen+1000)}))
		t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) })
	}
	flood, other := holding(t, files...), holding(t, openAs(t, fullMinor, unix.O_RDWR))
	pids := []int{min(flood, other), max(flood, other)}
	d := newDescriptors("/proc")
	found, err := d.search(pids, nodes, false, time.Minute)
	require.NoError(t, err)
	assert.Equal(t, map[int][]uint64{other: {deviceA}}, found)
	for range 3 {
		found, err = d.search(pids, nodes, false, time.Minute)
		require.NoError(t, err)
		assert.Equal(t, map[int][]uint64{other: {deviceA}, flood: {deviceB}}, found)
	}
	// Without time nothing new is found, and nothing is lost.
	found, err = d.search(pids, nodes, false, 0)
	assert.ErrorIs(t, err, errSearch)
	assert.Len(t, found, 2)
	d = newDescriptors("/proc")
	for range 4 {
		found, err = d.search(pids, nodes, false, 0)
		assert.ErrorIs(t, err, errSearch)
		assert.Empty(t, found)
	}
}

// A process of a container without a grant that has a GPU's device node open, by any name, is killed. Processes with a grant are not.
func TestAuditorFindsOpenDeviceNodes(t *testing.T) {
	a := newAudited(t, true)
	a.config.Inspector.Nodes = func() map[uint64]DeviceNode { return nodes }
	a.devices[gpuA] = nil
	begun := func(container string, file *os.File) *exec.Cmd {
		c := without(t, "mknod", file) // with all capabilities it counts as privileged
		if container != "" {
			join(t, a.root, "gpuslice-test-audit/"+container, c.Process.Pid)
		}
		return c
	}
	idC := strings.Repeat("c", 64)
	claim := *granted(idC, limit(gpuA, 1000))
	claim.Dir = t.TempDir()
	a.claims = []Claim{claim}
	first, second := openAs(t, fullMinor, unix.O_RDWR), openAs(t, zeroMinor, unix.O_RDONLY)
	thief, host, exempt, own, beyond := begun(idA, first), begun("", first), begun(idB, first), begun(idC, first), begun(idC, second)
	named := begun(idA, openAs(t, zeroMinor, unix.O_PATH))
	a.looks(2)
	assert.Equal(t, 2.0, a.lasting(ForeignDescriptor))
	require.NotEmpty(t, a.events)
	assert.Regexp(t, `GPUDescriptorForeign: process \d+ \("\w+"\) has the device node of `+gpuA+` open, and its container has no grant`, a.events[0])
	a.looks(1)
	assert.EqualError(t, thief.Wait(), "signal: killed")
	assert.EqualError(t, beyond.Wait(), "signal: killed")
	for _, c := range []*exec.Cmd{host, exempt, own, named} {
		assert.True(t, lives(c))
	}
	for at := range a.config.Inspector.descriptors.held {
		assert.NotContains(t, []int{host.Process.Pid, exempt.Process.Pid, named.Process.Pid}, at.pid, "granted devices are not followed")
	}
}

// A descriptor with O_PATH gives no access. One that was opened only for ioctl, without reading or writing, does.
func TestDescriptorsThatGiveAccess(t *testing.T) {
	const neither = unix.O_WRONLY | unix.O_RDWR
	path, ioctl := holding(t, openAs(t, fullMinor, unix.O_PATH)), holding(t, openAs(t, fullMinor, neither))
	d := newDescriptors("/proc")
	found, err := d.search([]int{min(path, ioctl), max(path, ioctl)}, nodes, true, time.Minute)
	require.NoError(t, err)
	assert.Equal(t, map[int][]uint64{ioctl: {deviceA}}, found)
}

// dup() of one device costs the audit one entry for each process.
func TestDescriptorsHeldDoNotGrowWithDup(t *testing.T) {
	gpu := openAs(t, fullMinor, unix.O_RDWR)
	files := make([]*os.File, 500)
	for i := range files {
		files[i] = gpu
	}
	one, two := holding(t, files...), holding(t, files...)
	d := newDescriptors("/proc")
	for range 3 {
		_, err := d.search([]int{min(one, two), max(one, two)}, nodes, true, time.Minute)
		require.NoError(t, err)
		assert.Len(t, d.held, 2)
	}
}

// A process with very many open files delays no other: some files of each are searched first.
func TestDescriptorsOfAFloodDelayNoOtherProcess(t *testing.T) {
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	flood := holding(t, slices.Repeat([]*os.File{null}, 700)...)
	other := holding(t, openAs(t, fullMinor, unix.O_RDWR))
	d := newDescriptors("/proc")
	d.next = flood
	var now time.Time
	d.clock = func() time.Time { now = now.Add(time.Second); return now }
	found, err := d.search([]int{min(flood, other), max(flood, other)}, nodes, false, 2*time.Second)
	assert.ErrorIs(t, err, errSearch)
	assert.Equal(t, map[int][]uint64{other: {deviceA}}, found)
}

// A look finds a limited number of device nodes, and the next one continues: granted ones are dropped.
func TestDescriptorsFoundInOneLookAreBounded(t *testing.T) {
	gpus := []*os.File{}
	all := map[uint64]DeviceNode{}
	for _, minor := range []uint32{3, zeroMinor, fullMinor, randomMinor, 9} {
		gpus = append(gpus, openAs(t, minor, unix.O_RDONLY))
		all[unix.Mkdev(memoryMajor, minor)] = DeviceNode{gpuA}
	}
	pid := holding(t, gpus...)
	d := newDescriptors("/proc")
	d.found = mostNew - 2
	d.until = time.Now().Add(time.Minute)
	d.process(pid, all, true, mostOpen)
	require.NotEmpty(t, d.held)
	assert.ErrorIs(t, d.around([]int{pid}, all, true), errSearch)
	require.NoError(t, d.keep(func(int, uint64) (string, bool) { return "", false }))
	assert.Empty(t, d.held)
	_, err := d.search([]int{pid}, all, true, time.Minute)
	require.NoError(t, err)
	assert.Len(t, d.held, len(gpus))
}
