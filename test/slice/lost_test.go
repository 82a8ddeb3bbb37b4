//go:build root

package slice

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/test/vgpufstest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// vanish kills a container and removes its runtime's state, as on a machine after all daemons were killed: no
// poststop hook runs.
func (c *container) vanish() {
	c.n.t.Helper()
	out, status := run(c.n.t, nil, "runc", "state", c.id)
	require.Zero(c.n.t, status, out)
	var state struct{ Pid int }
	require.NoError(c.n.t, json.Unmarshal([]byte(out), &state))
	require.NoError(c.n.t, unix.Kill(state.Pid, unix.SIGKILL))
	require.NoError(c.n.t, os.RemoveAll(filepath.Join("/run/runc", c.id)))
	for { // the kernel's own time
		data, err := os.ReadFile(filepath.Join("/proc", itoa(state.Pid), "stat"))
		if err != nil || strings.Contains(string(data), ") Z ") {
			return
		}
	}
}

func itoa(n int) string { return strings.TrimSpace(string(must(json.Marshal(n)))) }

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

func TestKilledWithoutAWord(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	n.container("lost", n.glibc(), []string{small}, sleep...).startAndVanish()

	next := n.container("next", n.glibc(), []string{small}, meminfo...)
	out, status := next.run()
	require.NotZero(t, status)
	require.Contains(t, out, "free now: start the container again")
	require.Empty(t, n.claims())
	out, status = next.run()
	require.Zero(t, status, out)
}

func (c *container) startAndVanish() {
	c.n.t.Helper()
	c.start()
	c.vanish()
	require.Equal(c.n.t, []string{c.id}, c.n.claims())
}

// The wrapper gives such claims back too: its sweep reads the same record.
func TestTheWrapperSweepsLostSlices(t *testing.T) {
	n := newNode(t, []string{"T4"}, "  small: {memory: 10GiB}\n")
	n.mustGenerate()
	n.container("lost", n.glibc(), []string{small}, sleep...).startAndVanish()

	c := n.container("wrapped", n.glibc(), nil, meminfo...)
	cmd := exec.Command(artefact(t, "bin", "gpuslice-runtime"), "run", "--bundle", c.bundle, c.id)
	cmd.Env = append(os.Environ(), "GPUSLICE_RUNTIME_CONFIG="+n.path("runtime.yaml"))
	c.setEnv("GPUSLICE_MEMORY=10GiB")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "total_bytes=10737418240")

	// What the lost one wrote into the slice's usage file is still there.
	next := n.container("next", n.glibc(), []string{small}, meminfo...)
	said, status := next.run()
	require.NotZero(t, status)
	require.Contains(t, said, "free now: start the container again")
	said, status = next.run()
	require.Zero(t, status, said)
}

func TestStartedAgainUnderItsId(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	c := n.container("again", n.glibc(), []string{small}, meminfo...)
	for range 3 {
		out, status := c.run()
		require.Zero(t, status, out)
		require.Empty(t, n.claims())
	}
}

// What a container writes into its usage file is gone with it.
func TestNextContainerHasNewFiles(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	usage := n.path("run/slices/small/vgpu/usage")
	before, err := os.ReadFile(usage)
	require.NoError(t, err)
	c := n.container("scribbler", n.glibc(), []string{small}, "/bin/busybox", "dd", "if=/dev/urandom", "of=/.gpuslice/usage", "conv=notrunc", "bs=4096", "count=8")
	out, status := c.run()
	require.Zero(t, status, out)
	after, err := os.ReadFile(usage)
	require.NoError(t, err)
	require.Equal(t, before, after)
	out, status = n.container("next", n.glibc(), []string{small}, meminfo...).run()
	require.Zero(t, status, out)
}

func TestManyAtOnce(t *testing.T) {
	const many = 8
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	containers := make([]*container, many)
	for i := range containers {
		containers[i] = n.container("c"+itoa(i), n.glibc(), []string{small}, sleep...)
	}
	started := make([]bool, many)
	var wg sync.WaitGroup
	for i, c := range containers {
		wg.Go(func() {
			cmd := exec.Command("runc", "run", "--detach", "--bundle", c.bundle, c.id)
			started[i] = cmd.Run() == nil
		})
	}
	wg.Wait()
	count := 0
	for i, c := range containers {
		if started[i] {
			count++
			require.Equal(t, []string{c.id}, n.claims())
			c.stop()
		}
	}
	require.Equal(t, 1, count)
	require.Empty(t, n.claims())
}

func TestAfterAReboot(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	vgpufstest.Lose(t, n.path("run"))
	require.NoError(t, os.RemoveAll(n.path("run/slices")))
	c := n.container("c", n.glibc(), []string{small}, meminfo...)
	out, status := c.run()
	require.NotZero(t, status, out)
	require.NotContains(t, out, "total_bytes")
	n.mustGenerate()
	out, status = c.run()
	require.Zero(t, status, out)
}

func TestWithoutTheHookProgramNothingRuns(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	program := n.path("bin/gpuslice-runtime")
	require.NoError(t, os.Mkdir(filepath.Dir(program), 0o755))
	data, err := os.ReadFile(artefact(t, "bin", "gpuslice-runtime"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, data, 0o755))
	lib := n.path("lib64/..") // the limiter is found beside the program
	require.NoError(t, os.MkdirAll(n.path("lib64"), 0o755))
	require.NoError(t, os.CopyFS(filepath.Join(lib, "lib"), os.DirFS(filepath.Dir(artefact(t, "lib", "libvgpu.so")))))
	n.mustGenerate("--runtime", program)
	require.NoError(t, os.Remove(program))
	out, status := n.container("c", n.glibc(), []string{small}, meminfo...).run()
	require.NotZero(t, status, out)
	require.NotContains(t, out, "total_bytes")
}

// A GPU that is full of the claims of dead containers is not full: the next container of another slice, or
// gpuslice cdi generate, removes them.
func TestLostSlicesDontKeepTheGPU(t *testing.T) {
	const two = "  a: {memory: 9GiB}\n  b: {memory: 9GiB}\n"
	n := newNode(t, []string{"T4"}, two)
	n.mustGenerate()
	n.container("lost", n.glibc(), []string{"gpuslice.io/slice=a"}, sleep...).startAndVanish()
	out, status := n.container("other", n.glibc(), []string{"gpuslice.io/slice=b"}, meminfo...).run()
	require.Zero(t, status, out)
	require.Empty(t, n.claims())
	out, status = n.container("next", n.glibc(), []string{"gpuslice.io/slice=a"}, meminfo...).run()
	require.Zero(t, status, "its files are new already: %s", out)

	n.container("again", n.glibc(), []string{"gpuslice.io/slice=a"}, sleep...).startAndVanish()
	n.mustGenerate()
	require.Empty(t, n.claims())

	n.container("removed", n.glibc(), []string{"gpuslice.io/slice=a"}, sleep...).startAndVanish()
	n.configure("auto", "  b: {memory: 9GiB}\n")
	n.mustGenerate()
	require.Empty(t, n.claims())

	// What the wrapper's dead containers had is no less free.
	c := n.container("wrapped", n.glibc(), nil, sleep...)
	c.setEnv("GPUSLICE_MEMORY=9GiB")
	t.Setenv("GPUSLICE_RUNTIME_CONFIG", n.path("runtime.yaml"))
	c.background(artefact(t, "bin", "gpuslice-runtime"), "run", "--detach", "--bundle", c.bundle, c.id)
	c.vanish()
	require.Equal(t, []string{c.id}, n.claims())
	out, status = n.container("last", n.glibc(), []string{"gpuslice.io/slice=b"}, meminfo...).run()
	require.Zero(t, status, out)
}

// An id belongs to one container of one runtime's state. A container that is refused takes nothing from the
// container that has the id.
func TestSameIdElsewhere(t *testing.T) {
	n := newNode(t, []string{"T4"}, "  a: {memory: 4GiB}\n  b: {memory: 4GiB}\n")
	n.mustGenerate()
	first := n.container("same", n.glibc(), []string{"gpuslice.io/slice=a"}, sleep...)
	first.start()
	usage := n.stamp("run/slices/a/vgpu/usage")
	for slice, want := range map[string]string{
		"a": "uses it, and a slice is for one container at a time",
		"b": "is already reserved",
	} {
		second := n.container("same-"+slice, n.glibc(), []string{"gpuslice.io/slice=" + slice}, meminfo...)
		out, status := run(t, nil, "runc", "--root", n.path("elsewhere"), "run", "--bundle", second.bundle, first.id)
		require.NotZero(t, status, out)
		require.Contains(t, out, want)
		require.Equal(t, []string{first.id}, n.claims())
		require.Equal(t, usage, n.stamp("run/slices/a/vgpu/usage"), "its files are its own")
	}
	// The same bundle, with the first one's process alive.
	out, status := run(t, nil, "runc", "--root", n.path("elsewhere"), "run", "--bundle", first.bundle, first.id)
	require.NotZero(t, status, out)
	require.Equal(t, []string{first.id}, n.claims())
	out, status = n.container("third", n.glibc(), []string{"gpuslice.io/slice=a"}, meminfo...).run()
	require.NotZero(t, status, out)
	first.stop()
	require.Empty(t, n.claims())
}
