package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Way is how the two containers get their shares: as a user's do.
type Way interface {
	// String names it in the report.
	String() string
	// start starts a probe with a share. i is 0 or 1.
	start(ctx context.Context, i int, of room) (*probe, error)
	// isContainer reports whether a container of the node is the i-th.
	isContainer(i int, c view.Container) bool
	// stranger starts a process that uses the GPU beside the shares, and returns what the audit calls it. end ends it.
	stranger(ctx context.Context, limit, whole time.Duration, of room, first *probe) (s stranger, end func() error, err error)
	// choose chooses the GPU. Containers that run have one already.
	choose(n view.Node) (room, error)
}

type stranger struct{ kind, pid, container string }

// Kinds of the audit's reports.
const (
	hostProcess = "host-process"
	noLimiter   = "no-limiter"
)

// endPatience is the time for a program to end with its input.
const endPatience = 10 * time.Second

// Command are the programs of a host: `gpuslice run`, or a container engine.
type Command struct {
	// Probe is the path of gpuslice-probe.
	Probe string
	// GPU is the UUID or index of a GPU; empty: one with room.
	GPU string
	// Self runs gpuslice with these arguments before "run"'s own.
	Self []string
	// Engine and Image run the probe in containers of an engine with the runtime gpuslice; Image empty: gpuslice run.
	Engine, Image string
}

func (c Command) String() string {
	if c.Image != "" {
		return c.Engine + " run " + c.Image
	}
	return "gpuslice run"
}

func (c Command) choose(n view.Node) (room, error) { return choose(n, c.GPU) }

// name has this process' PID: two runs at a time don't meet.
func (c Command) name(i int) string { return fmt.Sprintf("gpuslice-verify-%d.%d", i, os.Getpid()) }

func (c Command) isContainer(i int, of view.Container) bool {
	return of.Name == c.name(i) || c.Image != "" && strings.HasSuffix(of.Name, c.name(i))
}

func (c Command) arguments(i int, of room) []string {
	memory, percent := strconv.Itoa(LimitMiB)+"MiB", strconv.Itoa(of.cores[i])
	if c.Image == "" {
		return append(append([]string{}, c.Self...), "--memory="+memory, "--cores="+percent, "--gpus="+of.gpu.UUID, "--name="+c.name(i), "--", c.Probe)
	}
	return []string{
		c.Engine, "run", "--rm", "-i", "--runtime=gpuslice", "--network=none", "--name=" + c.name(i),
		"-e", api.EnvMemory + "=" + memory, "-e", api.EnvCores + "=" + percent, "-e", api.EnvDevices + "=" + of.gpu.UUID,
		"-v", c.Probe + ":/gpuslice-probe:ro", "--entrypoint=/gpuslice-probe", c.Image,
	}
}

func (c Command) start(ctx context.Context, i int, of room) (*probe, error) {
	remove := func() {}
	if c.Image != "" {
		remove = func() { _ = exec.Command(c.Engine, "rm", "-f", c.name(i)).Run() } // mostly gone already
	}
	return startProgram(ctx, c.arguments(i, of), nil, remove)
}

// startProgram starts a probe as a child. It ends with its input, so that it does too when this process is killed.
func startProgram(ctx context.Context, args, env []string, remove func()) (*probe, error) {
	child := exec.Command(args[0], args[1:]...)
	child.Env = append(os.Environ(), env...)
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's signals end this process, which ends the child in order
	var errs bytes.Buffer
	child.Stderr = &errs
	child.WaitDelay = endPatience
	in, err := child.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := child.Start(); err != nil {
		return nil, err
	}
	p := newProbe(out, in, func() error {
		in.Close()
		late := time.AfterFunc(endPatience, func() { _ = child.Process.Signal(syscall.SIGTERM) })
		later := time.AfterFunc(2*endPatience, func() { _ = child.Process.Kill() })
		err := child.Wait()
		late.Stop()
		later.Stop()
		remove()
		return err
	})
	if _, err := p.until(ctx, "ready"); err != nil {
		_ = p.close()
		if said := strings.TrimSpace(errs.String()); said != "" {
			err = errors.New(said)
		}
		return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return p, nil
}

// stranger is a process of the host with a context on the GPU. It has no share, and takes room that was looked for.
func (c Command) stranger(ctx context.Context, limit, whole time.Duration, of room, _ *probe) (stranger, func() error, error) {
	p, err := startProgram(ctx, []string{c.Probe}, []string{"CUDA_VISIBLE_DEVICES=" + of.gpu.UUID}, func() {})
	if err != nil {
		return stranger{}, nil, err
	}
	if err := p.limit(ctx, limit, whole); err != nil {
		return stranger{}, nil, errors.Join(err, p.close())
	}
	pid, err := p.hold(ctx, limit, "hold")
	if err != nil {
		return stranger{}, nil, errors.Join(err, p.close())
	}
	return stranger{kind: hostProcess, pid: pid}, p.close, nil
}

// Sockets are probes that run in containers of this pod already: first.sock and second.sock in a directory.
type Sockets struct {
	Dir string
	// Pod is NAMESPACE/NAME.
	Pod string
}

// socketNames are the names of the containers, and of their sockets.
var socketNames = [2]string{"first", "second"}

func (s Sockets) String() string { return "pod " + s.Pod }

func (s Sockets) isContainer(i int, c view.Container) bool {
	return c.Pod == s.Pod && c.Name == socketNames[i]
}

// choose reads the GPU that the scheduler chose.
func (s Sockets) choose(n view.Node) (of room, err error) {
	for i, name := range socketNames {
		share, has := view.Share{}, false
		for _, c := range n.Containers {
			if s.isContainer(i, c) && len(c.Shares) == 1 {
				share, has = c.Shares[0], true
			}
		}
		switch {
		case !has:
			return of, fmt.Errorf("container %s of pod %s has no share of one GPU: kubectl describe pod shows why", name, s.Pod)
		case share.MemoryMiB != LimitMiB:
			return of, fmt.Errorf("container %s of pod %s has %d MiB, not the %d that it requests", name, s.Pod, share.MemoryMiB, LimitMiB)
		case i == 1 && share.UUID != of.gpu.UUID:
			return of, fmt.Errorf("the containers of pod %s are on different GPUs: no GPU of the node has room for both", s.Pod)
		}
		of.cores[i] = share.CorePercent
		for _, gpu := range n.GPUs {
			if gpu.UUID == share.UUID {
				of.gpu = gpu
			}
		}
	}
	if of.cores[0] < 1 || of.cores[1] <= of.cores[0] {
		return of, fmt.Errorf("the containers of pod %s have %d and %d %% of compute time: request two different shares, the smaller one first", s.Pod, of.cores[0], of.cores[1])
	}
	return of, nil
}

func (s Sockets) start(ctx context.Context, i int, _ room) (*probe, error) {
	path := filepath.Join(s.Dir, socketNames[i]+".sock")
	conn, err := dial(ctx, path)
	if err != nil {
		return nil, err
	}
	p := newProbe(conn, conn, conn.Close)
	if _, err := p.until(ctx, "ready"); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), p.close())
	}
	return p, nil
}

// End ends the probes that still wait for a connection: a probe ends with its own, and has no socket since it began.
func (s Sockets) End() {
	for _, name := range socketNames {
		if conn, err := net.Dial("unix", filepath.Join(s.Dir, name+".sock")); err == nil {
			conn.Close()
		}
	}
}

// dial waits for the socket: containers of a pod start in any order.
func dial(ctx context.Context, path string) (net.Conn, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stranger is a process in the first container that is on the GPU and does not have the limiter's file: a container of a pod has nothing else on the
// GPU beside its share.
func (s Sockets) stranger(ctx context.Context, limit, _ time.Duration, _ room, first *probe) (stranger, func() error, error) {
	pid, err := first.hold(ctx, limit, "bare")
	end := func() error { return first.release(context.WithoutCancel(ctx), limit) }
	return stranger{kind: noLimiter, pid: pid, container: s.Pod + "/" + socketNames[0]}, end, err
}
