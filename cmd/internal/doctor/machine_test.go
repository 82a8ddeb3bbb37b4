package doctor

import (
	"context"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/harness"
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

// What is read of containerd's files is what the real containerd makes of them, and
// the real daemon returns its version.
func TestRealContainerd(t *testing.T) {
	dir, err := os.MkdirTemp("", "gs") // a unix socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	ctr, err := harness.NewContainerd(t.Context(), dir, harness.ContainerdOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ctr.Close(context.Background())) })
	m := openMachine(t, "/")

	report := Examine(t.Context(), m, Options{RuntimeSocket: dir + "/c.sock", RuntimeConfig: dir + "/config.toml", StateDir: dir, LibraryDir: dir, KubeletDir: dir})
	for _, r := range report.Results[:6] { // those of the runtime
		assert.Equal(t, OK, r.State, "%+v", r)
	}
	assert.Regexp(t, `^containerd v?2\.\d+\.\d+`, report.Results[0].Found)
	assert.Equal(t, "NRI listens on "+dir+"/nri/nri.sock", report.Results[2].Found)

	tool, err := harness.Tool("containerd")
	require.NoError(t, err)
	for description, files := range map[string][2]string{
		"none":    {},
		"version": {"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\n  default_runtime_name = 'nvidia'\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"},
		"imports": {
			"version = 3\nimports = ['*.d.toml']\n[plugins.'io.containerd.nri.v1.nri']\n  socket_path = '/x'\n" + validatorOn + "required_plugins = ['a']\n" + nvidiaV3,
			"version = 2\ndisabled_plugins = ['io.containerd.x.v1.y']\n[plugins.'io.containerd.nri.v1.nri']\n  plugin_request_timeout = '3s'\n[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  required_plugins = ['gpuslice']\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\n  default_runtime_name = 'nvidia'\n",
		},
	} {
		t.Run(description, func(t *testing.T) {
			dir := t.TempDir()
			for i, file := range []string{"main.toml", "b.d.toml"} {
				if files[i] != "" {
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(files[i]), 0o644))
				}
			}
			dump, err := harness.Run(t.Context(), nil, tool, "--config", filepath.Join(dir, "main.toml"), "config", "dump")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "dump"), []byte(dump), 0o644))

			type facts struct {
				nri, validated, required, disabled bool
				socket, timeout, handler           any
				nvidia                             []string
			}
			of := func(file string) facts {
				c := readRuntimeConfig(m, filepath.Join(dir, file), version{2, 4, 2})
				require.NoError(t, c.err)
				timeout, err := c.requestTimeout()
				require.NoError(t, err)
				return facts{
					c.nriEnabled(), setting(c, false, pluginNRI, "default_validator", "enable"), c.requires("gpuslice"), slices.Contains(c.disabled, "io.containerd.x.v1.y"),
					c.nriSocket(), timeout, c.defaultHandler(), c.nvidiaHandlers(),
				}
			}
			// The dump's imports are read too, and change nothing.
			assert.Equal(t, of("dump"), of("main.toml"))
		})
	}
}
