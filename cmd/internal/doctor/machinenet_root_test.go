//go:build root

package doctor

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
