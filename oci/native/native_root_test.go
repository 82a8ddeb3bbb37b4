//go:build root

package native

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

const limitMiB = 4096

// A statically linked program, into which nothing is loaded, gets what its container's claim has and no byte more: by the
// hook as it is installed, in a control group of the kernel, with each of the driver's back ends.
func TestStaticProgramIsRefusedAtTheLimit(t *testing.T) {
	for _, backend := range []string{"misc", "dmem"} {
		t.Run(backend, func(t *testing.T) {
			c := startContainer(t, "branch=615", "memory_limits="+backend)
			out, err := c.callHook()
			require.NoError(t, err, "%s", out)
			result := c.allocate(t)
			assert.Equal(t, "2", result["result"], "CUDA_ERROR_OUT_OF_MEMORY")
			peak := c.peak(t)
			assert.LessOrEqual(t, peak, uint64(limitMiB<<20), "0 bytes over")
			assert.Greater(t, peak, uint64((limitMiB-4)<<20), "all that it may have")
		})
	}
}

func TestHookRefusesOlderDriver(t *testing.T) {
	c := startContainer(t, "branch=580")
	out, err := c.callHook()
	require.Error(t, err)
	assert.Contains(t, out, "nvmlDeviceSetMemoryLimits_v1")
}

func TestHookRefusesSharedGroup(t *testing.T) {
	c := startContainer(t, "branch=615")
	beside := exec.Command("sleep", "infinity")
	beside.SysProcAttr = c.cmd.SysProcAttr
	require.NoError(t, beside.Start())
	t.Cleanup(func() { _ = beside.Process.Kill(); _ = beside.Wait() })
	out, err := c.callHook()
	require.Error(t, err)
	assert.Contains(t, out, "other processes")
}

// container is a process in the state in which a runtime calls createRuntime hooks: in its control group and mount namespace,
// before its program.
type container struct {
	cmd      *exec.Cmd
	stdin    interface{ Write([]byte) (int, error) }
	lines    *bufio.Scanner
	dir, sim string
	env      []string
}

// delegated returns the mount of the control groups. If it has no nsdelegate, as on a machine without systemd, it has until the
// end of the test: the options of each mount of them are those of all.
func delegated(t *testing.T) string {
	root, err := Root()
	require.NotEmpty(t, root, "%v", err)
	if err != nil {
		mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(root))
		require.NoError(t, err)
		before, dir := mounts[0].VFSOptions, t.TempDir()
		mount := func(options string) {
			cmd := exec.Command("mount", "-t", "cgroup2", "-o", options, "none", dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		mount(before + ",nsdelegate")
		t.Cleanup(func() { mount(before) })
	}
	root, err = Root()
	require.NoError(t, err)
	return root
}

func startContainer(t *testing.T, driver ...string) *container {
	root := delegated(t)
	build, err := filepath.Abs("../../build")
	require.NoError(t, err)
	c := &container{dir: t.TempDir(), sim: filepath.Join(build, "sim")}
	c.env = append(os.Environ(), "SIMGPU_STATE="+filepath.Join(c.dir, "gpus"))
	c.simctl(t, "init", "--gpu", "H200")
	c.simctl(t, append([]string{"set", "driver"}, driver...)...)

	group, err := os.MkdirTemp(root, "gpuslice-test-")
	require.NoError(t, err)
	t.Cleanup(func() {
		// The kernel can remove a process from its group after it was reaped.
		assert.Eventually(t, func() bool { return !errors.Is(os.Remove(group), syscall.EBUSY) }, time.Minute, time.Millisecond)
	})
	fd, err := os.Open(group)
	require.NoError(t, err)
	t.Cleanup(func() { fd.Close() })

	rootfs := filepath.Join(c.dir, "rootfs")
	require.NoError(t, os.Mkdir(rootfs, 0o755))
	c.cmd = exec.Command("sh", "-c", `mount --bind "$0" "$0" && echo in && exec "$1" wait`, rootfs, filepath.Join(c.sim, "static"))
	c.cmd.Env, c.cmd.Stderr = c.env, os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	stdin, err := c.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	c.stdin, c.lines = stdin, bufio.NewScanner(stdout)
	require.True(t, c.lines.Scan())
	require.Equal(t, "in", c.lines.Text())

	config, err := json.Marshal(map[string]any{"root": map[string]any{"path": "rootfs"}, "process": map[string]any{}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "config.json"), config, 0o644))
	c.claim(t)
	return c
}

func (c *container) claim(t *testing.T) {
	l, err := ledger.Open(filepath.Join(c.dir, "state"))
	require.NoError(t, err)
	defer l.Close()
	_, err = l.Claim(t.Context(), ledger.Claim{
		ContainerID: containerID, Owner: ledger.OwnerRuntime, Container: "main", Shares: []grant.Share{{UUID: gpu, MemoryMiB: limitMiB}},
	}, map[string]grant.GPU{gpu: {MemoryMiB: 100000, CorePercent: 100, Replicas: 10}}, func(string) error { return nil })
	require.NoError(t, err)
}

func (c *container) setup() Setup {
	bin := filepath.Join(c.sim, "../bin")
	return Setup{
		Hook: filepath.Join(bin, "gpuslice-runtime"), StateDir: filepath.Join(c.dir, "state"),
		Program: filepath.Join(bin, "gpuslice"), Library: filepath.Join(c.sim, "libnvidia-ml.so.1"),
	}
}

func (c *container) simctl(t *testing.T, args ...string) []byte {
	cmd := exec.Command(filepath.Join(c.sim, "simctl"), args...)
	cmd.Env = c.env
	out, err := cmd.Output()
	require.NoError(t, err)
	return out
}

func (c *container) callHook() (string, error) {
	h := c.setup().Edit()
	cmd := exec.Command(h.Path, h.Args[1:]...)
	cmd.Env = append(c.env, h.Env...)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"id":%q,"pid":%d,"bundle":%q}`, containerID, c.cmd.Process.Pid, c.dir))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *container) allocate(t *testing.T) map[string]string {
	_, err := c.stdin.Write([]byte("\n"))
	require.NoError(t, err)
	values := map[string]string{}
	for values["ready"] == "" && c.lines.Scan() {
		name, value, _ := strings.Cut(c.lines.Text(), "=")
		values[name] = value
	}
	return values
}

func (c *container) peak(t *testing.T) uint64 {
	var status struct {
		GPUs []struct {
			Peak uint64 `json:"memory_peak_bytes"`
		} `json:"gpus"`
	}
	require.NoError(t, json.Unmarshal(c.simctl(t, "status", "-o", "json"), &status))
	require.Len(t, status.GPUs, 1)
	return status.GPUs[0].Peak
}

// With runc no other process is in the control group when the hook is called, and only the hook's limit holds in the container.
// A container that could leave its group is not started.
func TestHookWithRunc(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(spec *rspec.Spec)
		refused string
	}{
		"limited": {func(*rspec.Spec) {}, ""},
		"CAP_SYS_ADMIN": {func(s *rspec.Spec) {
			s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
		}, "CAP_SYS_ADMIN"},
		"the host's control groups": {func(s *rspec.Spec) {
			s.Mounts = append(s.Mounts, rspec.Mount{Source: "/sys/fs/cgroup", Destination: "/mnt", Type: "bind", Options: []string{"rbind", "rw"}})
		}, "mounted to write, at"},
		"the host's root, read-only": {func(s *rspec.Spec) {
			s.Mounts = append(s.Mounts, rspec.Mount{Source: "/", Destination: "/mnt", Type: "bind", Options: []string{"rbind", "ro"}})
		}, "mounted to write, at"},
		"no claim": {func(s *rspec.Spec) {
			s.Hooks.CreateRuntime[0].Args = []string{"gpuslice-runtime", Command, optionState + "=/absent"}
		}, "no claim"},
		"no agent": {func(s *rspec.Spec) {
			h := &s.Hooks.CreateRuntime[0]
			h.Args = h.Args[:3]
		}, "gpuslice-agent"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &container{dir: t.TempDir()}
			build, err := filepath.Abs("../../build")
			require.NoError(t, err)
			c.sim = filepath.Join(build, "sim")
			c.env = append(os.Environ(), "SIMGPU_STATE="+filepath.Join(c.dir, "gpus"))
			c.simctl(t, "init", "--driver", "615", "--gpu", "H200")
			c.claim(t)
			h := c.setup().Edit()
			spec := &rspec.Spec{
				Version: "1.0.2", Root: &rspec.Root{Path: "rootfs"},
				Process: &rspec.Process{
					Cwd: "/", Args: []string{"/static"}, Env: []string{"SIMGPU_STATE=/gpus"},
					Capabilities: &rspec.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}},
				},
				Mounts: []rspec.Mount{
					{Source: "proc", Destination: "/proc", Type: "proc"},
					{Source: "cgroup", Destination: "/sys/fs/cgroup", Type: "cgroup", Options: []string{"ro"}},
					{Source: filepath.Join(c.sim, "static"), Destination: "/static", Type: "bind", Options: []string{"bind", "ro"}},
					{Source: filepath.Join(c.dir, "gpus"), Destination: "/gpus", Type: "bind", Options: []string{"bind", "rw"}},
				},
				Linux: &rspec.Linux{
					CgroupsPath: "/gpuslice-test-" + strings.ReplaceAll(strings.Trim(c.dir, "/"), "/", "-"),
					Namespaces:  []rspec.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "cgroup"}},
				},
				Hooks: &rspec.Hooks{CreateRuntime: []rspec.Hook{{Path: h.Path, Args: h.Args, Env: append(h.Env, "SIMGPU_STATE="+filepath.Join(c.dir, "gpus"))}}},
			}
			tt.change(spec)
			config, err := json.Marshal(spec)
			require.NoError(t, err)
			require.NoError(t, os.Mkdir(filepath.Join(c.dir, "rootfs"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(c.dir, "config.json"), config, 0o644))

			cmd := exec.Command("sh", "-c", `mount --bind "$2" /sys/fs/cgroup && exec runc --root "$0/runc" run --bundle "$0" "$1"`, c.dir, containerID, delegated(t))
			cmd.Env, cmd.SysProcAttr = c.env, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			if tt.refused != "" {
				require.Error(t, err)
				assert.Contains(t, string(out), tt.refused)
				assert.NotContains(t, string(out), "allocated_mib", "nothing of the container has run")
				return
			}
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), "result=2\n")
			peak := c.peak(t)
			assert.LessOrEqual(t, peak, uint64(limitMiB<<20), "0 bytes over")
			assert.Greater(t, peak, uint64((limitMiB-4)<<20))
		})
	}
}
