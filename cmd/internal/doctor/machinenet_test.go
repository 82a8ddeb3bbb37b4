package doctor

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

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
