//go:build root

package docker_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// rootless runs the wrapper as a rootless engine does: as a user of the machine that is root of its own user
// namespace.
func rootless(t testing.TB, m *harness.Machine, env ...string) error {
	wrapper, err := harness.Wrapper()
	require.NoError(t, err)
	bundle, err := os.MkdirTemp(m.Dir, "bundle")
	require.NoError(t, err)
	root, err := harness.GlibcRoot()
	require.NoError(t, err)
	require.NoError(t, root.Write(filepath.Join(bundle, "rootfs")))
	// The program may be in a directory that is closed to others.
	program, err := os.ReadFile(wrapper)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "gpuslice-runtime"), program, 0o755))
	_, err = harness.Run(context.Background(), nil, "/usr/sbin/runc", "spec", "--rootless", "--bundle", bundle)
	require.NoError(t, err)
	edit := exec.Command("sed", "-i", `s/"terminal": true/"terminal": false/; s/"PATH=/"`+env[0]+`", "PATH=/; s/"sh"/"\/opt\/workloads\/meminfo"/; /"rlimits"/,/\],/d`, filepath.Join(bundle, "config.json"))
	require.NoError(t, edit.Run())
	out, err := exec.Command("chown", "-R", "1000:1000", bundle).CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, err = harness.Run(context.Background(), append(m.RuntimeEnv(), "XDG_RUNTIME_DIR="+bundle),
		"/usr/bin/setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups",
		"/usr/bin/unshare", "--user", "--map-root-user", "--mount",
		filepath.Join(bundle, "gpuslice-runtime"), "--root", filepath.Join(bundle, "state"), "run", "--bundle", bundle, "rootless")
	return err
}

// The ledger belongs to root, so a user's own engine gives no shares, and reports that.
func TestRootless(t *testing.T) {
	m := newMachine(t, "H200")
	err := rootless(t, m, "GPUSLICE_MEMORY=1GiB")
	require.ErrorContains(t, err, "start the container with root's engine (sudo podman, or docker's system daemon), not with a rootless one")
	err = rootless(t, m, "NVIDIA_VISIBLE_DEVICES=all")
	require.ErrorContains(t, err, "exit status 4") // it runs, and has no driver
	requireNothingLeft(t, m)
}

// Rootless podman itself, with gpuslice's runtime, and with its hooks and runc.
func TestRootlessPodman(t *testing.T) {
	m := newMachine(t, "H200")
	p, err := harness.NewPodman(m)
	require.NoError(t, err)
	// The program may be in a directory that is closed to others.
	wrapper, err := harness.Wrapper()
	require.NoError(t, err)
	program, err := os.ReadFile(wrapper)
	require.NoError(t, err)
	own := filepath.Join(p.Dir, "gpuslice-runtime")
	require.NoError(t, os.WriteFile(own, program, 0o755))
	require.NoError(t, p.InstallHooks(m))
	hooks, err := filepath.Glob(filepath.Join(p.HooksDir, "*.json"))
	require.NoError(t, err)
	out, err := exec.Command("sed", append([]string{"-i", "s|" + wrapper + "|" + own + "|"}, hooks...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	home := filepath.Join(p.Dir, "home")
	require.NoError(t, os.MkdirAll(filepath.Join(home, "run"), 0o700))
	out, err = exec.Command("chown", "-R", "1000:1000", p.Dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() { // podman's process that keeps the user namespace
		for _, name := range []string{"run/libpod/tmp", "../tmp"} {
			if data, err := os.ReadFile(filepath.Join(home, name, "pause.pid")); err == nil {
				pid, err := strconv.Atoi(string(data))
				require.NoError(t, err)
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
		}
	})
	podman := func(options ...string) (string, error) {
		args := []string{
			"--reuid", "1000", "--regid", "1000", "--clear-groups", "/usr/bin/podman", "--root", home + "/root", "--runroot", home + "/runroot",
			"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
		}
		cmd := exec.Command("/usr/bin/setpriv", append(append(args, options...), "--rootfs", p.Rootfs, workload("meminfo"))...)
		cmd.Env = append(m.RuntimeEnv(), "HOME="+home, "XDG_RUNTIME_DIR="+home+"/run", "PATH=/usr/bin:/usr/sbin:/bin:/sbin", "CONTAINERS_CONF="+p.Dir+"/containers.conf")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	run := []string{"run", "--rm", "--network", "none"}
	for _, options := range [][]string{{"--runtime", own}, {"--runtime", "runc", "--hooks-dir", p.HooksDir}} {
		out, err := podman(append(append(slices.Clone(options), run...), "-e", "GPUSLICE_MEMORY=1GiB")...)
		require.Error(t, err)
		require.Contains(t, out, "start the container with root's engine (sudo podman, or docker's system daemon), not with a rootless one", options)
		out, err = podman(append(slices.Clone(options), run...)...)
		require.ErrorContains(t, err, "exit status 4", "%v: it runs, and has no driver: %s", options, out)
	}
	requireNothingLeft(t, m)
}

// A container in a user namespace, with a root that has no rights outside, has its share too.
func TestDockerUserNamespaces(t *testing.T) {
	m := newMachine(t, "H200")
	d := newDocker(t, m, harness.DockerdOptions{Remapped: true})
	ctx := context.Background()
	id := d.start(t, share(3000, 20), workload("hold"), "--mib=100")
	d.waitReady(t, id)
	out, err := d.Docker(ctx, "exec", id, "/bin/cat", "/proc/self/uid_map")
	require.NoError(t, err)
	require.Regexp(t, `^\s*0\s+100000\s+65536\s*$`, out)
	for _, options := range [][]string{nil, {"--user", "1000"}} {
		out, err := d.Docker(ctx, append(append([]string{"exec"}, options...), id, workload("meminfo"))...)
		require.NoError(t, err)
		requireSees(t, harness.KeyValues(out), 3000)
	}
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", d.exec(t, id, workload("alloc"))["result"])
	_, err = d.Docker(ctx, "exec", id, "/bin/sh", "-c", "echo 0 >/.gpuslice/limits")
	require.Error(t, err)
	d.remove(t, id)
	requireNothingLeft(t, m)
}
