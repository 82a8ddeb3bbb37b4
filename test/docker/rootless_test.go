//go:build root

package docker_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
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
	require.ErrorContains(t, err, "start the container with a daemon that runs as root")
	err = rootless(t, m, "NVIDIA_VISIBLE_DEVICES=all")
	require.ErrorContains(t, err, "exit status 4") // it runs, and has no driver
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
