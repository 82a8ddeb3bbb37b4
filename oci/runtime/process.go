package ociruntime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/oci/request"
)

// Process is a command on the host, without a container.
type Process struct {
	// Name is its name in the ledger.
	Name string
	// Path is its program.
	Path string
	Args []string
	Env  []string
	// Request are the variables of a container with its request.
	Request []string
	// As is the user that it runs as; nil: the caller.
	As *syscall.Credential
}

// ErrNotStarted means that the kernel did not start the program.
var ErrNotStarted = errors.New("start the program")

// RunProcess runs a command of the host with a share, as if the host were its container: in a mount namespace with the limiter's
// files. It returns the command's exit status. Processes that outlive the command keep the share.
func (r *Runtime) RunProcess(ctx context.Context, p Process) (status int, err error) {
	if _, err := os.Lstat(api.ContainerUsagePath); err == nil {
		return exitFailed, errors.New("this process has a GPU share already, and a second one would replace its limits: run the command without `gpuslice run`")
	}
	signals := forwarded()
	defer signal.Stop(signals)
	env, ours := splitRequest(p.Env)
	spec := &rspec.Spec{Root: &rspec.Root{Path: "/"}, Process: &rspec.Process{Args: p.Args, Env: append(env, p.Request...)}, Linux: &rspec.Linux{}}
	id := "run-" + strings.ToLower(rand.Text()[:16])
	cr := &creation{call: Call{Command: "run", ID: id, Bundle: "/"}, creator: os.Getpid(), process: p.Name}
	undo, err := r.admit(ctx, cr, spec)
	if err != nil {
		return exitFailed, err
	}
	if len(spec.Mounts) == 0 {
		return exitFailed, errors.New("no share is requested")
	}
	claim, err := r.claimOf(id)
	if err != nil {
		return exitFailed, errors.Join(err, undo())
	}
	r.at("reserved")
	child := &exec.Cmd{
		Path: p.Path, Args: p.Args, Env: append(spec.Process.Env, ours...), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Credential: p.As},
	}
	status, err = runChild(child, signals, func() error {
		if err := endedBefore(signals); err != nil {
			return err
		}
		if p.As != nil {
			if err := keepDescriptors(); err != nil {
				return err
			}
		}
		return startMounted(child, spec.Mounts)
	})
	if err != nil && child.Process == nil {
		return exitFailed, errors.Join(err, undo())
	}
	// Not ctx: the signal that ended the command has cancelled it.
	if err := r.release(context.WithoutCancel(ctx), id, claim.Nonce, true); err != nil {
		// The next creation releases it.
		fmt.Fprintf(r.Stderr, "gpuslice: %s: release its GPU share: %v\n", p.Name, err)
	} else if _, kept := r.claimOf(id); kept == nil {
		fmt.Fprintf(r.Stderr, "gpuslice: processes of %s still run: its GPU share is released after they end\n", p.Name)
	}
	return status, err
}

// splitRequest removes the variables of containers' requests, which a person's shell can have, and returns those of gpuslice's
// programs among them.
func splitRequest(env []string) (left, ours []string) {
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case !request.IsVariable(name):
			left = append(left, e)
		case strings.HasPrefix(name, api.EnvPrefix) && !slices.Contains([]string{api.EnvMemory, api.EnvCores, api.EnvDevices, api.EnvPriority, api.EnvSlice}, name):
			ours = append(ours, e)
		}
	}
	return left, ours
}

// keepDescriptors keeps this process' open files from the programs that it starts, except the standard ones.
func keepDescriptors() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list the open files: %w", err)
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// startMounted starts a program in a mount namespace of its own. Only one thread enters it, and not the first: that one's namespace
// counts as the process'.
func startMounted(child *exec.Cmd, mounts []rspec.Mount) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			done <- startMounted(child, mounts)
			return
		}
		// The thread stays locked, and ends with this goroutine.
		err := enterMounts(mounts)
		if err == nil {
			if err = child.Start(); err != nil {
				err = fmt.Errorf("%w: %w", ErrNotStarted, err)
			}
		}
		done <- err
	}()
	return <-done
}

func enterMounts(mounts []rspec.Mount) error {
	for _, m := range mounts {
		if err := makePlace(m); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// The host's later mounts and unmounts arrive here, and none of these on the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate the mounts from the host's: %w", err)
	}
	for _, m := range mounts {
		if err := bind(m); err != nil {
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
	}
	return nil
}

// makePlace makes a mount point on the host, which stays: if it were removed, the kernel would remove the mounts on it in all
// namespaces.
func makePlace(m rspec.Mount) error {
	if strings.HasPrefix(m.Destination, api.ContainerDir+"/") {
		return nil // in the claim's directory
	}
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.Mkdir(m.Destination, 0o755)
	} else {
		var f *os.File
		if f, err = os.OpenFile(m.Destination, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the mount point %s: %w", m.Destination, err)
	}
	return nil
}

var bindFlags = map[string]uintptr{"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC}

func bind(m rspec.Mount) error {
	if err := unix.Mount(m.Source, m.Destination, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT)
	for name, flag := range bindFlags {
		if slices.Contains(m.Options, name) {
			flags |= flag
		}
	}
	return unix.Mount("", m.Destination, "", flags, "")
}
