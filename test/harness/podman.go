package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/install"
)

// Podman is Debian's podman, which has no daemon, with its storage under a directory of its
// own.
type Podman struct {
	Dir string
	// HooksDir is a directory of hooks.d; none when empty.
	HooksDir string
	// CDIDir is a directory of CDI specs; the machine's own when empty. Containers have to end
	// with the command that starts them.
	CDIDir string
	// Rootfs is the root file system of the containers, all the same.
	Rootfs string

	env []string
}

// NewPodman writes podman's configuration and a root file system for its containers. Out
// of the ordinary are the private paths, and limits that a machine without
// CAP_SYS_RESOURCE lets be set.
func NewPodman(m *Machine) (*Podman, error) {
	p := &Podman{Dir: filepath.Join(m.Dir, "podman")}
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		return nil, err
	}
	p.Rootfs = filepath.Join(p.Dir, "rootfs")
	root, err := GlibcRoot()
	if err != nil {
		return nil, err
	}
	if err := root.Write(p.Rootfs); err != nil {
		return nil, err
	}
	// conmon and the runtimes that it starts have no other environment.
	env, err := json.Marshal(append([]string{debianPath}, m.RuntimeEnv()...))
	if err != nil {
		return nil, err
	}
	config := filepath.Join(p.Dir, "containers.conf")
	text := fmt.Sprintf(`[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "%s/tmp"
conmon_env_vars = %s
`, p.Dir, env)
	p.env = append([]string{"CONTAINERS_CONF=" + config, debianPath}, m.RuntimeEnv()...)
	return p, os.WriteFile(config, []byte(text), 0o644)
}

// withSpecs mounts a directory of CDI specs for podman, in a mount namespace of its own. Mounts
// in the state directory are seen outside of it, as on a machine with systemd.
const withSpecs = `for m in / /run; do mount --make-private $m 2>/dev/null || :; done
mount -t tmpfs run /run
cp -r "$0" /run/cdi
exec "$@"`

// Command runs podman and returns what it wrote to standard output. The error holds what
// it wrote to standard error.
func (p *Podman) Command(ctx context.Context, runtime string, args ...string) (string, error) {
	path, err := debian("podman", "podman")
	if err != nil {
		return "", err
	}
	global := []string{
		"--root", filepath.Join(p.Dir, "root"), "--runroot", filepath.Join(p.Dir, "run"),
		"--storage-driver", "vfs", "--runtime", runtime,
	}
	if p.HooksDir != "" {
		global = append(global, "--hooks-dir", p.HooksDir)
	}
	command := append(append([]string{path}, global...), args...)
	if p.CDIDir != "" {
		command = append([]string{"/usr/bin/unshare", "--mount", "--propagation", "unchanged", "/bin/sh", "-euc", withSpecs, p.CDIDir}, command...)
	}
	return Run(ctx, p.env, command[0], command[1:]...)
}

// Run runs a command in a container of the workloads' root file system.
func (p *Podman) Run(ctx context.Context, runtime string, options []string, command ...string) (string, error) {
	args := append([]string{"run", "--network", "none"}, options...)
	return p.Command(ctx, runtime, append(append(args, "--rootfs", p.Rootfs), command...)...)
}

// InstallHooks installs the product's hooks.d files, as `gpuslice install podman` does,
// into a directory of this podman's own.
func (p *Podman) InstallHooks(m *Machine) error {
	wrapper, err := Wrapper()
	if err != nil {
		return err
	}
	hooks, err := install.Hooks()
	if err != nil {
		return err
	}
	entries, err := fs.ReadDir(hooks, ".")
	if err != nil {
		return err
	}
	p.HooksDir = filepath.Join(p.Dir, "hooks.d")
	if err := os.Mkdir(p.HooksDir, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		data, err := fs.ReadFile(hooks, e.Name())
		if err != nil {
			return err
		}
		var hook map[string]any
		if err := json.Unmarshal(data, &hook); err != nil {
			return fmt.Errorf("read the hook %s: %w", e.Name(), err)
		}
		// Hooks have no environment but this, and another config than the usual one.
		call := hook["hook"].(map[string]any)
		call["path"] = wrapper
		call["args"] = append(call["args"].([]any), "--config="+m.runtimeConfigPath())
		call["env"] = append([]string{debianPath}, m.RuntimeEnv()...)
		if data, err = json.Marshal(hook); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.HooksDir, e.Name()), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Close removes every container.
func (p *Podman) Close(ctx context.Context) error {
	ids, err := p.Command(ctx, "runc", "ps", "--all", "--quiet")
	if err != nil || strings.TrimSpace(ids) == "" {
		return err
	}
	_, err = p.Command(ctx, "runc", "rm", "--all", "--force", "--time", "0")
	return err
}
