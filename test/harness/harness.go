// Package harness brings up what gpuslice's demo and end-to-end tests run on: a
// real containerd with NRI, a node with a simulated GPU, the agent, and
// containers made through CRI.
//
// Everything lives under one temporary directory and every process is stopped by
// its pid, so that two runs never meet. The functions return errors; they know
// nothing of *testing.T, because the demo uses them too.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Repository returns the root directory of the source tree: the closest parent of
// the working directory that has a go.mod.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod in this directory or above it: run inside the gpuslice source tree")
		}
		dir = parent
	}
}

// Artefact returns the path of something that `make build` makes, below build/.
func Artefact(elem ...string) (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	path := filepath.Join(append([]string{root, "build"}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built: run `make build` first", filepath.Join(elem...))
	}
	return path, nil
}

// Tool returns the path of a program of the tools-only module (containerd, ctr …).
func Tool(name string) (string, error) { return tool("--where", name) }

// Nspawn is the path of systemd-nspawn.
func Nspawn() (string, error) {
	if path, err := exec.LookPath("systemd-nspawn"); err == nil {
		return path, nil
	}
	return tool("--where", "systemd-nspawn")
}

// tool returns the path of a program in the directory that setup.sh prints for an option.
func tool(option, name string) (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	where, err := exec.Command(filepath.Join(root, "test", "setup.sh"), option).Output()
	if err != nil {
		return "", fmt.Errorf("ask test/setup.sh for the tools: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(where)), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built: run `make setup` first", name)
	}
	return path, nil
}

// Run runs a program to its end and returns its standard output. The error
// holds what it wrote to standard error.
func Run(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Process is a daemon that the harness started.
type Process struct {
	Name    string
	LogPath string

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// StartProcess starts a daemon with its output in <dir>/<name>.log. It goes on after a harness that is killed.
func StartProcess(dir, name string, env []string, path string, args ...string) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()

	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A process group of its own: a Ctrl-C at the demo's terminal must reach only the harness, which then
	// stops everything in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, LogPath: log.Name(), cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Suspend sends SIGSTOP and returns when all threads have stopped: on a busy machine a thread can run on after the signal.
func (p *Process) Suspend(ctx context.Context) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return Until(ctx, time.Minute, func(context.Context) error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		if err != nil {
			return err
		}
		if len(threads) == 0 {
			return fmt.Errorf("process %d has ended", p.PID())
		}
		for _, path := range threads {
			stat, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if state := stat[bytes.LastIndexByte(stat, ')')+1:]; !bytes.HasPrefix(state, []byte(" T")) {
				return fmt.Errorf("%s: the thread has not stopped: %.3s", path, state)
			}
		}
		return nil
	})
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.done }

// Err is how the process has ended, once Exited is closed: nil with status 0.
func (p *Process) Err() error { return p.err }

// Kill ends the process with SIGKILL and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop ends the process with SIGTERM, and with SIGKILL when it doesn't listen.
func (p *Process) Stop(patience time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(patience * slowness()):
		p.Kill()
		return fmt.Errorf("%s did not stop within %v of SIGTERM and was killed; its log is %s", p.Name, patience, p.LogPath)
	}
}

// LogTail returns the last lines that the process wrote.
func (p *Process) LogTail(lines int) string {
	data, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// StartPatience and StopPatience are how long a program may take until it answers, and to end, on a machine that is busy.
const StartPatience, StopPatience = time.Minute, time.Minute

// SlownessEnv is the variable that has how many times as slow as others a machine is: an emulated one is.
const SlownessEnv = "GPUSLICE_TEST_SLOWNESS"

// slowness multiplies everything that waits, and nothing that measures.
var slowness = sync.OnceValue(func() time.Duration {
	if n, err := strconv.Atoi(os.Getenv(SlownessEnv)); err == nil && n > 0 {
		return time.Duration(n)
	}
	return 1
})

// Until calls probe until it returns nil, and gives up with its last error.
func Until(ctx context.Context, patience time.Duration, probe func(context.Context) error) error {
	patience *= slowness()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := time.Millisecond
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", patience, err)
		case <-time.After(pause):
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
}

// KeyValues reads the key=value lines that the workloads print.
func KeyValues(text string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = value
		}
	}
	return values
}

// Make runs make for a target in directories of C code; "" is the default target. The output is in build/, with a sanitizer in
// a directory of its own below it. Test programs that run at the same time take turns.
func Make(sanitizer, target string, dirs ...string) error {
	root, err := Repository()
	if err != nil {
		return err
	}
	build := filepath.Join(root, "build")
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(build, ".lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	for _, dir := range dirs {
		args := []string{"-s", "-j", strconv.Itoa(runtime.NumCPU()), "-C", filepath.Join(root, dir), "OUT=" + build, "SAN=" + sanitizer}
		if target != "" {
			args = append(args, target)
		}
		if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("make -C %s: %w\n%s", dir, err, out)
		}
	}
	return nil
}

// NvidiaRuntime is the path of NVIDIA's own container runtime.
func NvidiaRuntime() (string, error) { return tool("--where-nvidia", "nvidia-container-runtime") }

// NvidiaConfig are settings of NVIDIA's container runtime.
type NvidiaConfig struct {
	// IgnoreVariables makes it ignore the variables of unprivileged containers
	// (accept-nvidia-visible-devices-envvar-when-unprivileged = false).
	IgnoreVariables bool
	// AcceptMounts makes it read volume mounts (accept-nvidia-visible-devices-as-volume-mounts).
	AcceptMounts bool
}

// WriteNvidiaConfig writes the configuration of NVIDIA's container runtime, which injects
// this machine's simulated GPUs from their CDI spec.
func (m *Machine) WriteNvidiaConfig(c NvidiaConfig) error {
	return os.WriteFile(m.nvidiaConfigPath(), fmt.Appendf(nil, `accept-nvidia-visible-devices-envvar-when-unprivileged = %v
accept-nvidia-visible-devices-as-volume-mounts = %v
swarm-resource = "DOCKER_RESOURCE_GPU"
[nvidia-container-runtime]
mode = "cdi"
runtimes = ["runc"]
[nvidia-container-runtime.modes.cdi]
spec-dirs = [%q]
[features]
disable-cuda-compat-lib-hook = true
`, !c.IgnoreVariables, c.AcceptMounts, m.CDIDir()), 0o644)
}

func (m *Machine) nvidiaConfigPath() string { return filepath.Join(m.Dir, "nvidia.toml") }
