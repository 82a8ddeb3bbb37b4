//go:build root

package ociruntime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// fake is a low-level runtime that writes down how it is called.
const fake = `#!/bin/sh
echo "$@" >> "$FAKE_DIR/argv"
echo "stdout of $*"
case "$*" in
*delete*) trap 'echo term >> "$FAKE_DIR/argv"; exit 7' TERM
	[ -e "$FAKE_DIR/wait" ] && { echo ready >> "$FAKE_DIR/argv"; while :; do sleep 0.01; done; }
	exit $(cat "$FAKE_DIR/status") ;;
*" create --bundle "*) [ -e "$FAKE_DIR/bundles/web" ] && cp "$FAKE_DIR/bundles/web/config.json" "$FAKE_DIR/seen.json" ;;
esac
exit 0
`

// newFake is a machine with that runtime.
func newFake(t *testing.T) *machine {
	m := newMachine(t, "")
	write(t, m.path("fake"), fake, 0o755)
	write(t, m.path("runtime.yaml"), strings.Replace(read(t, m.path("runtime.yaml")), "runtimes: [runc]", "runtimes: ["+m.path("fake")+"]", 1), 0o644)
	write(t, m.path("status"), "0", 0o644)
	t.Setenv("FAKE_DIR", m.dir)
	return m
}

// Every command goes to the low-level runtime as it is, and create does with a config
// that was changed before.
func TestPassedOn(t *testing.T) {
	m := newFake(t)
	global := "--root " + m.path("root") + " --log " + m.path("log.json") + " --log-format json "
	for _, line := range []string{"state web", "exec --pid-file x web create --bundle /x", "features", "delete unknown", "kill web 9", "--newer x list"} {
		out := m.must(strings.Fields(line)...)
		require.Equal(t, "stdout of "+global+line, out)
	}
	bundle := m.bundle("web", []string{"GPUSLICE_MEMORY=1GiB"})
	before := read(t, filepath.Join(bundle, configName))
	m.must("create", "--bundle", bundle, "--preserve-fds=3", "web")
	calls := strings.Split(read(t, m.path("argv")), "\n")
	require.Equal(t, global+"create --bundle "+bundle+" --preserve-fds=3 web", calls[len(calls)-1])
	require.Equal(t, read(t, filepath.Join(bundle, configName)), read(t, m.path("seen.json")))
	require.NotEqual(t, before, read(t, m.path("seen.json")))
	m.must("delete", "web")
}

// The program's version is the first line, and the low-level runtime's are the last ones, of which docker takes one.
func TestVersion(t *testing.T) {
	m := newFake(t)
	for _, option := range []string{"--version", "-v"} {
		first, rest, _ := strings.Cut(m.must(option), "\n")
		require.Regexp(t, `^gpuslice-runtime version v1\.2\.3$`, first)
		require.True(t, strings.HasPrefix(rest, "stdout of "), rest)
	}
	require.NotContains(t, m.must("exec", "-v", "web"), "gpuslice-runtime version")
}

// delete ends as the low-level runtime's does, and passes signals on.
func TestDelete(t *testing.T) {
	m := newFake(t)
	_, err := m.create("web", "GPUSLICE_MEMORY=1GiB")
	require.NoError(t, err)
	write(t, m.path("wait"), "", 0o644)
	cmd := m.command(nil, "delete", "--force", "web")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(read(t, m.path("argv")), "ready") }, patience, pause)
	ids, _ := m.claimed()
	require.Equal(t, []string{"web"}, ids, "not before the low-level runtime has ended")
	require.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	require.EqualError(t, cmd.Wait(), "exit status 7")
	require.Contains(t, read(t, m.path("argv")), "term")
	ids, _ = m.claimed()
	require.Empty(t, ids, "no process of it is there")
}

// A delete that fails keeps the claim of a live container, and releases the claim of another.
func TestDeleteFails(t *testing.T) {
	m := newFake(t)
	_, err := m.create("web", "GPUSLICE_MEMORY=1GiB")
	require.NoError(t, err)
	write(t, m.path("status"), "1", 0o644)
	self, err := orphans.Procfs("/proc").Identify(os.Getpid())
	require.NoError(t, err)
	state := write(t, m.path("root/web/state.json"), `{"id":"web","init_process_pid":`+itoa(self.PID)+`,"init_process_start":`+itoa(int(self.Start))+`,"config":{}}`, 0o600)
	_, err = m.run("delete", "web")
	require.EqualError(t, err, "exit status 1")
	ids, _ := m.claimed()
	require.Equal(t, []string{"web"}, ids)

	require.NoError(t, os.Remove(state))
	_, err = m.run("delete", "web")
	require.EqualError(t, err, "exit status 1")
	ids, _ = m.claimed()
	require.Empty(t, ids)
}

// delete reports a damaged record, and releases the claim when no process uses it.
func TestDeleteDamaged(t *testing.T) {
	m := newFake(t)
	_, err := m.create("web", "GPUSLICE_MEMORY=1GiB")
	require.NoError(t, err)
	gone := 0
	if namespace, err := orphans.Procfs("/proc").Namespace(); err != nil || namespace != orphans.MachineNamespace {
		gone = 1 // in a container not all processes are visible
	}
	dir := m.path("run/containers/web")
	write(t, filepath.Join(dir, orphans.RecordName), "{", 0o600)
	for _, want := range []struct {
		age  time.Duration
		left int
	}{{0, 1}, {time.Hour, gone}} { // a young one may be in the making
		then := time.Now().Add(-want.age)
		require.NoError(t, os.Chtimes(dir, then, then))
		out, _ := m.run("delete", "web")
		require.Contains(t, out, "the record of a claim is damaged: "+dir)
		ids, _ := m.claimed()
		require.Len(t, ids, want.left)
	}
}

// Two containers of one id, in two roots (containerd's namespaces): the second is refused,
// and its removal leaves the first its claim.
func TestSameIDTwice(t *testing.T) {
	m := newMachine(t, "")
	out, err := m.create("web", "GPUSLICE_MEMORY=1GiB")
	require.NoError(t, err, out)
	defer m.remove("web")
	for _, memory := range []string{"1GiB", "2GiB"} {
		bundle := m.bundle("web2", []string{"GPUSLICE_MEMORY=" + memory})
		out, err = m.run("--root", m.path("root2"), "create", "-b", bundle, "web")
		require.Error(t, err)
		require.Contains(t, out, "a container with the ID web already has a GPU share (bundle "+m.path("bundles/web")+"): remove it, or use another ID")
	}
	_, err = m.run("--root", m.path("root2"), "delete", "--force", "web")
	require.NoError(t, err)
	ids, _ := m.claimed()
	require.Equal(t, []string{"web"}, ids)
}

// If exec fails, the claim is released.
func TestExecFails(t *testing.T) {
	m := newFake(t)
	write(t, m.path("fake"), "#!/no/such/interpreter\n", 0o755)
	out, err := m.create("web", "GPUSLICE_MEMORY=1GiB")
	require.Error(t, err)
	require.Contains(t, out, "run "+m.path("fake"))
	ids, _ := m.claimed()
	require.Empty(t, ids)
}

// A low-level runtime that calls us is refused.
func TestRecursion(t *testing.T) {
	m := newFake(t)
	self, err := os.Executable()
	require.NoError(t, err)
	write(t, m.path("fake"), "#!/bin/sh\nexec "+self+" \"$@\"\n", 0o755)
	out, err := m.create("web", "GPUSLICE_MEMORY=1GiB")
	require.Error(t, err)
	require.Contains(t, out, "has called gpuslice-runtime")
	_, err = m.run("delete", "web")
	require.Error(t, err)
	ids, _ := m.claimed()
	require.Empty(t, ids)
}

// Creation and removal killed at any moment, ours and runc's: a container that is there
// has its claim, and once everything was removed nothing is left.
func TestKilledAnywhere(t *testing.T) {
	m := newMachine(t, "")
	request := []string{"GPUSLICE_MEMORY=8GiB", "GPUSLICE_DEVICES=device=0"}
	for after := time.Duration(0); after < 80*time.Millisecond; after += 4 * time.Millisecond {
		m.kill(after, "create", "-b", m.bundle("web", request), "web")
		// Another creation sweeps what is gone, and must not take what is there.
		out, err := m.create("other", request...)
		require.NoError(t, err, out)
		m.requireClaims()
		m.kill(after, "delete", "--force", "web")
		m.requireClaims()
		m.remove("web")
		m.remove("other")
		ids, _ := m.claimed()
		require.Empty(t, ids, "killed after %v", after)
	}
}

// kill runs the wrapper and kills it, or what it has become, after some time.
func (m *machine) kill(after time.Duration, args ...string) {
	m.Helper()
	cmd := m.command(nil, args...)
	require.NoError(m, cmd.Start())
	time.Sleep(after)
	_ = cmd.Process.Kill() // it may be done
	_ = cmd.Wait()
}

// requireClaims requires a claim for each container with a live init process.
func (m *machine) requireClaims() {
	m.Helper()
	ids, usage := m.claimed()
	states, err := os.ReadDir(m.path("root"))
	require.NoError(m, err)
	for _, s := range states {
		if init, known := orphans.InitOf(filepath.Join(m.path("root"), s.Name())); known && orphans.Procfs("/proc").Lives(init) {
			require.Contains(m, ids, s.Name())
		}
	}
	require.Equal(m, int64(8192*len(ids)), usage[h200].MemoryMiB)
}
