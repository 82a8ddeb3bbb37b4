package doctor

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

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

// A request to an agent in another network namespace is made there, and the caller stays in its own.
func TestAgentInItsOwnNetwork(t *testing.T) {
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
