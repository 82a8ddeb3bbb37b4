package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// mountNamespace is kept open by a process that sleeps. What is mounted in it goes with
// the last of its processes.
type mountNamespace struct {
	holder *harness.Process
}

// privateSysctls are written to by the kubelet and by CNI, which would change the machine.
var privateSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	"net/ipv4/ip_forward",
}

// newMountNamespace makes a mount namespace like this one in which /var/lib and /var/log
// are folders below dir, and the sysctls that the kubelet sets are files.
func newMountNamespace(ctx context.Context, dir string) (*mountNamespace, error) {
	var script strings.Builder
	script.WriteString("set -e\n")
	for _, path := range []string{"/var/lib", "/var/log"} {
		private := filepath.Join(dir, "private", path)
		if err := os.MkdirAll(private, 0o755); err != nil {
			return nil, err
		}
		fmt.Fprintf(&script, "mount --bind %s %s\n", private, path)
	}
	for _, name := range privateSysctls {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		private := filepath.Join(dir, "private/proc/sys", name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(private), 0o755), os.WriteFile(private, value, 0o644)); err != nil {
			return nil, err
		}
		fmt.Fprintf(&script, "mount --bind %s /proc/sys/%s\n", private, name)
	}
	fmt.Fprintf(&script, "touch %s\nexec sleep infinity\n", filepath.Join(dir, "private/ready"))
	holder, err := harness.StartProcess(dir, "namespace", nil, "unshare", "--mount", "--propagation", "private", "sh", "-c", script.String())
	if err != nil {
		return nil, err
	}
	err = harness.Until(ctx, 10*time.Second, func(context.Context) error {
		select {
		case <-holder.Exited():
			return errors.New("it ended")
		default:
		}
		_, err := os.Stat(filepath.Join(dir, "private/ready"))
		return err
	})
	if err != nil {
		holder.Kill()
		return nil, fmt.Errorf("make a mount namespace (as root): %w\n%s", err, holder.LogTail(10))
	}
	return &mountNamespace{holder}, nil
}

// enter is the command that starts another in the namespace, under the same process id.
func (m *mountNamespace) enter() []string {
	return []string{"nsenter", "--mount=/proc/" + strconv.Itoa(m.holder.PID()) + "/ns/mnt", "--"}
}

func (m *mountNamespace) close() { m.holder.Kill() }
