//go:build clients

package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/simdriver"
)

const (
	miB = 1 << 20
	giB = 1 << 30

	driverVersion = "570.172.08" // of the simulated driver
	contextBytes  = 520 * miB    // of an H200
)

// root is where the programs are unpacked.
var root = filepath.Join(simdriver.Root(), "build/clients/root")

// mode is how the limiter is loaded.
type mode struct {
	name             string
	preload, library bool
	variables        bool // limits in HAMi's variables, and not in a file
	neighbour        bool // beside another container on the GPU
}

// modes are all but without a limit.
var modes = []mode{
	{name: "variables", preload: true, variables: true},
	{name: "preload", preload: true},
	{name: "library", library: true},
	{name: "both", preload: true, library: true},
	{name: "neighbour", preload: true, neighbour: true},
}

// container is where a program runs: a driver, and limits.
type container struct {
	sim    *simdriver.Sim
	group  string
	driver string // root of the driver's files
	dir    string // the limiter's files; "": no limit
	env    []string
}

// libraries is the directory of the driver's libraries.
func (c *container) libraries() string { return filepath.Join(c.driver, "usr/lib", harness.Triplet) }

// newContainer makes a container without a limit. NVIDIA's programs look for files under the names that drivers install.
func newContainer(t *testing.T, s *simdriver.Sim, group string) *container {
	t.Helper()
	c := &container{sim: s, group: group, driver: t.TempDir()}
	require.NoError(t, os.MkdirAll(c.libraries(), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(c.driver, "dev"), 0o755))
	s.Ctl("devnodes", "--dev-dir", filepath.Join(c.driver, "dev"))
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		c.install(t, name, filepath.Join(s.Dir, "sim", name+".1"))
		require.NoError(t, os.Symlink(name+"."+driverVersion, filepath.Join(c.libraries(), name+".1")))
		require.NoError(t, os.Symlink(name+".1", filepath.Join(c.libraries(), name)))
	}
	return c
}

// install puts a file at the place of the driver's library.
func (c *container) install(t *testing.T, name, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.libraries(), name+"."+driverVersion), data, 0o755))
}

// limit gives the container its limits, and the limiter in that mode.
func (c *container) limit(t *testing.T, m mode, limit limiter.DeviceLimit) {
	t.Helper()
	c.dir = t.TempDir()
	library := filepath.Join(c.dir, "libvgpu.so")
	require.NoError(t, os.Symlink(filepath.Join(simdriver.Root(), "build/lib/libvgpu.so"), library))
	if m.preload {
		c.env = append(c.env, "LD_PRELOAD="+library)
	}
	if m.library {
		front := filepath.Join(simdriver.Root(), "limiter/front")
		out, err := exec.Command("make", "-s", "-C", front, "OUT="+c.dir, "DIR="+c.dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NoError(t, os.Mkdir(filepath.Join(c.dir, "driver"), 0o755))
		for name, behind := range map[string]string{"libcuda.so": "cuda", "libnvidia-ml.so": "nvml"} {
			c.install(t, name, filepath.Join(c.dir, "lib/libvgpu-"+behind+".so"))
			require.NoError(t, os.Symlink(filepath.Join(c.sim.Dir, "sim", name+".1"), filepath.Join(c.dir, "driver", behind)))
		}
	}
	if m.variables {
		c.env = append(c.env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dk", limit.MemoryLimitBytes/1024))
		return
	}
	limit.UUID, limit.ContextBytes = c.sim.Status().GPUs[0].UUID, contextBytes
	limits := limiter.Limits{Devices: []limiter.DeviceLimit{limit}}
	require.NoError(t, limiter.WriteLimits(limiter.LimitsPath(c.dir), limits))
	require.NoError(t, limiter.CreateUsage(limiter.UsagePath(c.dir), limits.UUIDs()))
	c.env = append(c.env, "VGPU_LIMITS_PATH="+limiter.LimitsPath(c.dir), "VGPU_USAGE_PATH="+limiter.UsagePath(c.dir))
}

// command is a line for sh, in an empty directory.
func (c *container) command(t *testing.T, line string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // no program here takes so long: it hangs
	t.Cleanup(cancel)                                                       // not t.Context: a neighbour lives until the test looks at it
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = t.TempDir()
	lib := filepath.Join(root, "usr/lib", harness.Triplet)
	cmd.Env = append(cmd.Env, "SIMGPU_STATE="+c.sim.State, "SIMGPU_GROUP="+c.group, "HOME="+cmd.Dir, "SHELL=/bin/sh", "TERM=xterm",
		"ROOT="+root, "DRIVER="+c.driver, "TESTDATA="+filepath.Join(simdriver.Root(), "test/clients/testdata"),
		"PATH="+filepath.Join(root, "usr/bin")+":"+os.Getenv("PATH"),
		"PYTHONPATH="+filepath.Join(root, "usr/lib/python3/dist-packages"),
		"LD_LIBRARY_PATH="+c.libraries()+":"+lib+":"+lib+"/blas:"+lib+"/lapack:"+lib+"/pulseaudio:"+filepath.Join(root, "usr/lib"))
	cmd.Env = append(cmd.Env, c.env...)
	// With what the shell has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// run returns the output and the exit status.
func (c *container) run(t *testing.T, line string) (string, int) {
	t.Helper()
	cmd := c.command(t, line)
	text, err := cmd.CombinedOutput()
	t.Logf("%s", text)
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// used is what the driver has for the container on the GPU: the most, and the data now.
func (c *container) used(t *testing.T) (peak, data uint64) {
	t.Helper()
	for _, group := range c.sim.Status().Groups {
		if fmt.Sprint(group.ID) == c.group && len(group.GPUs) > 0 {
			return group.GPUs[0].PeakTotalBytes, group.GPUs[0].DataBytes
		}
	}
	return 0, 0
}

// neighbour starts a program in another container on the GPU, which has 3 GiB of its 4. The end of the test looks whether
// it has them still.
func neighbour(t *testing.T, s *simdriver.Sim) {
	t.Helper()
	c := newContainer(t, s, "2")
	c.limit(t, mode{preload: true}, limiter.DeviceLimit{MemoryLimitBytes: 4 * giB})
	cmd := c.command(t, "exec "+filepath.Join(s.Dir, "workloads/hold")+" --mib 3072")
	s.StartCommand(cmd)
	t.Cleanup(func() {
		_, data := c.used(t)
		require.EqualValues(t, 3*giB, data, "the neighbour's memory")
		usage, err := limiter.ReadUsage(limiter.UsagePath(c.dir))
		require.NoError(t, err)
		require.EqualValues(t, 3*giB+contextBytes, usage.Devices[0].UsedBytes, "the neighbour's usage file")
	})
}
