package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/test/harness"
)

// namespaces are the cluster's own, of mounts and of the network. They are kept open by a
// process that sleeps; what is in them goes with the last of their processes.
type namespaces struct {
	holder *harness.Process
}

// privateSysctls are written to by the kubelet, which would change the machine. Those of
// the network are the namespace's own anyway.
var privateSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// privateDirs are those of a node that its programs write to, at paths that everybody
// knows: the cluster has its own.
var privateDirs = []string{"/var/lib", "/var/log", "/run"}

// newNamespaces makes a mount namespace like this one in which privateDirs are below
// dir, what is written to /etc goes there too, and the sysctls that the kubelet sets are
// files; and a network namespace with nothing in it.
//
// mounts are further directories, by where they are seen in the namespace.
func newNamespaces(ctx context.Context, dir string, mounts map[string]string) (*namespaces, error) {
	var script strings.Builder
	script.WriteString("set -e\n")
	bind := func(private, path string) { fmt.Fprintf(&script, "mount --bind %s %s\n", private, path) }
	for _, path := range privateDirs {
		private := filepath.Join(dir, "private", path)
		if err := os.MkdirAll(private, 0o755); err != nil {
			return nil, err
		}
		bind(private, path)
	}
	changed, work := filepath.Join(dir, "private/etc"), filepath.Join(dir, "private/etc.work")
	if err := errors.Join(os.MkdirAll(changed, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return nil, err
	}
	fmt.Fprintf(&script, "mount -t overlay -o lowerdir=/etc,upperdir=%s,workdir=%s overlay /etc\n", changed, work)
	for path, source := range mounts {
		fmt.Fprintf(&script, "mkdir -p %s\n", path)
		bind(source, path)
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
		bind(private, filepath.Join("/proc/sys", name))
	}
	// The holder sees the mounts that are made later too, such as a container's.
	fmt.Fprintf(&script, "mount --make-rshared /\ntouch %s\nexec sleep infinity\n", filepath.Join(dir, "private/ready"))
	holder, err := harness.StartProcess(dir, "namespace", nil, "unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", script.String())
	if err != nil {
		return nil, err
	}
	err = harness.Until(ctx, harness.StartPatience, func(context.Context) error {
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
	return &namespaces{holder}, nil
}

// enter is the command that starts another in the namespaces, under the same process id.
func (n *namespaces) enter() []string {
	pid := strconv.Itoa(n.holder.PID())
	return []string{"nsenter", "--mount=/proc/" + pid + "/ns/mnt", "--net=/proc/" + pid + "/ns/net", "--"}
}

// enterNetwork is the same for the network only.
func (n *namespaces) enterNetwork() []string {
	return []string{"nsenter", "--net=/proc/" + strconv.Itoa(n.holder.PID()) + "/ns/net", "--"}
}

func (n *namespaces) close() { n.holder.Kill() }
