//go:build root

package doctor

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

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
				c := readContainerd(m, filepath.Join(dir, file), version{2, 4, 2})
				require.NoError(t, c.err)
				timeout, err := c.requestTimeout()
				require.NoError(t, err)
				return facts{
					c.nriEnabled(), setting(c, false, PluginNRI, "default_validator", "enable"), c.requires("gpuslice"), slices.Contains(c.disabled, "io.containerd.x.v1.y"),
					c.nriSocket(), timeout, c.defaultHandler(), c.nvidiaHandlers(),
				}
			}
			// The dump's imports are read too, and change nothing.
			assert.Equal(t, of("dump"), of("main.toml"))
		})
	}
}

// A request to an agent in another network namespace is made there, and the caller stays in its own.
func TestAgentInItsOwnNetwork(t *testing.T) {
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends
	defer runtime.UnlockOSThread()
	dir := t.TempDir()
	agent := exec.Command(os.Args[0], "--health-address=:9777")
	agent.Env = append(os.Environ(), agentVariable+"="+dir)
	agent.Stderr = os.Stderr
	agent.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := agent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, agent.Start(), "as root")
	t.Cleanup(func() { _ = agent.Process.Kill(); _ = agent.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)

	m := openMachine(t, "/")
	own, err := m.Network(0)
	require.NoError(t, err)
	its, err := m.Network(agent.Process.Pid)
	require.NoError(t, err)
	require.NotEqual(t, own, its)

	for range 20 { // on whichever thread
		e := &exam{Host: m, o: Options{StateDir: dir, HealthAddress: "127.0.0.1:9396"}}
		var v verdict
		checkAgent(t.Context(), e, &v)
		require.Equal(t, OK, v.worst(), "%v", v.found)
		require.Equal(t, []string{"running and ready"}, v.found)
	}
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	require.NoError(t, err)
	for _, task := range tasks {
		if name, err := os.Readlink(task); err == nil {
			assert.Equal(t, own, name, "a thread has stayed there")
		}
	}

	_, err = m.Network(1 << 30)
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = m.Get(t.Context(), 1<<30, "http://127.0.0.1:9777/readyz")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
