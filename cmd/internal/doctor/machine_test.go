package doctor

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

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
