package doctor

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func openMachine(t *testing.T, root string) *Machine {
	m, err := NewMachine(root)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// A link of the node's, an absolute one too, leads to where it leads on the node.
func TestMachineStaysBelowItsRoot(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "run/nri"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var"), 0o755))
	require.NoError(t, os.Symlink("/run", filepath.Join(root, "var/run")))
	require.NoError(t, os.Symlink("../../../../etc", filepath.Join(root, "out")))
	require.NoError(t, os.WriteFile(filepath.Join(root, "run/nri/a.toml"), []byte("x"), 0o644))
	m := openMachine(t, root)

	data, err := fs.ReadFile(m, "var/run/nri/a.toml")
	require.NoError(t, err)
	assert.Equal(t, "x", string(data))
	found, err := fs.Glob(m, "var/run/*/*.toml")
	require.NoError(t, err)
	assert.Equal(t, []string{"var/run/nri/a.toml"}, found)
	_, err = fs.Stat(m, "out/passwd")
	assert.ErrorIs(t, err, fs.ErrNotExist)

	_, err = m.Output(t.Context(), "true")
	assert.ErrorContains(t, err, "another root")
	_, err = NewMachine(filepath.Join(root, "nope"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// The agent's lock is seen, and not taken.
func TestAgentLock(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.lock")
	lock, err := os.Create(path)
	require.NoError(t, err)
	defer lock.Close()
	e := &exam{Host: openMachine(t, "/"), o: Options{StateDir: dir}}
	_, runs := e.findAgent()
	assert.False(t, runs)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	agent, runs := e.findAgent()
	assert.True(t, runs)
	assert.Equal(t, os.Getpid(), agent.pid)
	assert.Equal(t, os.Args, agent.args)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	_, runs = e.findAgent()
	assert.False(t, runs)
}

func TestMachineEdges(t *testing.T) {
	m := openMachine(t, "/")
	f, err := m.Filesystem("/proc")
	require.NoError(t, err)
	assert.EqualValues(t, unix.PROC_SUPER_MAGIC, f.Type)
	_, err = m.Filesystem("/nope")
	assert.ErrorIs(t, err, fs.ErrNotExist)
	info, err := fs.Stat(m, "dev/null")
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&fs.ModeCharDevice)
	out, err := m.Output(t.Context(), "echo", "a", "b")
	require.NoError(t, err)
	assert.Equal(t, "a b\n", out)
	_, err = m.Output(t.Context(), "false")
	assert.ErrorContains(t, err, "false")

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "GPUs: none", http.StatusServiceUnavailable)
	}))
	status, body, err := m.Get(t.Context(), 0, server.URL)
	require.NoError(t, err)
	assert.Equal(t, 503, status)
	assert.Equal(t, "GPUs: none", body)
	server.Close()
	_, _, err = m.Get(t.Context(), 0, server.URL)
	assert.Error(t, err)
	_, _, err = m.RuntimeVersion(t.Context(), "/nope.sock")
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// busyLocks leaves the agent's lock out of the first reads of /proc/locks.
type busyLocks struct {
	*host
	without int
}

func (b *busyLocks) ReadFile(name string) ([]byte, error) {
	if name == "proc/locks" && b.without > 0 {
		b.without--
		return nil, nil
	}
	return b.host.ReadFile(name)
}

func TestAgentIsFoundWhileLocksChange(t *testing.T) {
	e := &exam{Host: &busyLocks{goodHost(t), lockReads - 1}, o: Options{StateDir: "/run/gpuslice"}}
	agent, runs := e.findAgent()
	require.True(t, runs)
	require.Equal(t, 1234, agent.pid)
}

// agentVariable has the state directory of a test's program that is an agent with a network of its own, as a pod's is.
const agentVariable = "GPUSLICE_TEST_AGENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentVariable); dir != "" {
		if err := beAgent(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// beAgent holds the lock, and is ready on port 9777 of its network's loopback.
func beAgent(dir string) error {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	lock, err := os.Create(filepath.Join(dir, "agent.lock"))
	if err != nil {
		return err
	}
	defer lock.Close() // not before: the garbage collector would release the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":9777")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
}

// containerd's configuration, as people and programs write it: read to its end, however it
// imports itself, each file once.
func FuzzReadRuntimeConfig(f *testing.F) {
	f.Add("version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = false\n", "version = 3\nimports = [\"../config.toml\"]\n", "containerd github.com/containerd/containerd v1.7.24~ds1")
	f.Add("disabled_plugins = [\"nri\"]\n[plugins]\na = 1\n", "[plugins.a]\nb=2\n", "2.0.0")
	f.Add("imports = [\"*\", \"[\"]", "", "")
	f.Fuzz(func(t *testing.T, main, imported, version string) {
		shown, v := parseVersion(version)
		require.True(t, shown != "" || !v.known())
		h := fstest.MapFS{"etc/containerd/config.toml": {Data: []byte(main)}, "etc/containerd/conf.d/a.toml": {Data: []byte(imported)}}
		c := readContainerd(h, "/etc/containerd/config.toml", v)
		require.LessOrEqual(t, len(c.Files), 2)
		if c.err == nil {
			require.NotEmpty(t, c.Files)
		}
	})
}
