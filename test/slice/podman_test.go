//go:build root

package slice

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// podman is Debian's, with directories of its own and plain runc.
type podman struct {
	n *node
}

func newPodman(n *node) podman {
	n.t.Helper()
	// Limits that this machine may not let it set.
	conf := "[containers]\ndefault_ulimits = [\"nofile=1024:1024\",\"nproc=4096:4096\"]\n"
	require.NoError(n.t, os.WriteFile(n.path("containers.conf"), []byte(conf), 0o644))
	require.NoError(n.t, os.MkdirAll("/var/run/cdi", 0o755)) // where podman 4.3 looks, and nowhere else
	return podman{n}
}

// run runs podman with the node's CDI directory, in a mount namespace of its own. Mounts in the
// state directory are seen outside of it, as on a machine with systemd.
func (p podman) run(args ...string) (out string, status int) {
	p.n.t.Helper()
	args = append([]string{"-c", `for m in / /run; do mount --make-private $m 2>/dev/null; done; mount --bind "$0" /var/run/cdi && exec podman "$@"`, p.n.path("cdi"),
		"--root", p.n.path("podman"), "--runroot", p.n.path("podman-run"), "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "/usr/sbin/runc"}, args...)
	cmd := exec.Command("/bin/sh", args...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+p.n.path("containers.conf"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS} // with Unshareflags Go makes all mounts private
	data, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return string(data), exit.ExitCode()
	}
	require.NoError(p.n.t, err, "%s", data)
	return string(data), 0
}

// must is run that works.
func (p podman) must(args ...string) string {
	p.n.t.Helper()
	out, status := p.run(args...)
	require.Zero(p.n.t, status, out)
	return out
}

func TestPodmanWithPlainRunc(t *testing.T) {
	n := newNode(t, []string{"T4"}, twoOfT4)
	n.mustGenerate()
	p := newPodman(n)
	roots := []string{n.path("root-1"), n.path("root-2")}
	for _, root := range roots {
		require.NoError(t, n.glibc().Write(root))
	}
	run := func(root string, more ...string) []string {
		return append([]string{"run", "--network", "none", "--device", small}, append(more, "--rootfs", root)...)
	}

	out := p.must(append(run(roots[0], "--rm", "--user", "1000", "--cap-drop", "ALL", "--read-only"), "/opt/workloads/meminfo")...)
	require.Contains(t, out, "total_bytes=4294967296")
	require.Empty(t, n.claims())

	p.must(append(run(roots[0], "-d", "--name", "held"), sleep...)...)
	t.Cleanup(func() { p.run("rm", "-f", "-t", "0", "held") })
	require.Len(t, n.claims(), 1)
	require.Contains(t, p.must("exec", "held", "/opt/workloads/meminfo"), "total_bytes=4294967296")

	out, status := p.run(append(run(roots[1], "--rm"), "/opt/workloads/meminfo")...)
	require.NotZero(t, status)
	require.Contains(t, out, "a slice is for one container at a time: free slices: large")

	p.must("restart", "-t", "0", "held")
	require.Contains(t, p.must("exec", "held", "/opt/workloads/meminfo"), "total_bytes=4294967296")
	require.Len(t, n.claims(), 1)

	p.must("kill", "-s", "KILL", "held")
	p.must("wait", "held")
	p.must("start", "held")
	require.Len(t, n.claims(), 1)
	p.must("rm", "-f", "-t", "0", "held")
	require.Empty(t, n.claims())

	require.Empty(t, strings.TrimSpace(p.must("ps", "-aq")))
}
