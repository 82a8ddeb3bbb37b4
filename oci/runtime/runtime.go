package ociruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/oci/claimed"
	"github.com/gpuslice/gpuslice/oci/request"
)

// The exit statuses: runc's.
const (
	exitDone   = 0
	exitFailed = 1
)

// Runtime is the wrapper, wired to a machine.
type Runtime struct {
	// Config is the operator's. ConfigProblem is why it can't be used: no container is
	// made, and commands for those that are there go on.
	Config        request.Config
	ConfigProblem error
	// Self is this program's path, for hooks.
	Self string
	// Env is the environment.
	Env []string
	// Stdin, Stdout and Stderr are the hooks', and for errors.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// GPUs says what the node has. It is asked only where a container wants a share.
	GPUs func(ctx context.Context) (GPUs, error)
	// Limiter says where the limiter's files are. It is asked as GPUs is.
	Limiter func() (Limiter, error)
	// Exec replaces this process (syscall.Exec).
	Exec func(path string, argv, env []string) error

	// step is told where a creation is; tests kill it there.
	step func(string)
}

// at tells a test where a creation is.
func (r *Runtime) at(step string) {
	if r.step != nil {
		r.step(step)
	}
}

// Main does what a command line asks for, without the program's name in front, and
// returns the exit status; a command that is passed to the low-level runtime doesn't
// return.
func (r *Runtime) Main(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] == "hook" {
		return r.hookMain(ctx, args[1:])
	}
	call, err := Parse(args)
	if err != nil && !call.makesContainer() {
		err = nil // the low-level runtime says what is wrong with it
	}
	status := exitFailed
	if err == nil {
		status, err = r.serve(ctx, call, args)
	}
	if err != nil {
		if call.ID != "" && call.makesContainer() {
			err = fmt.Errorf("container %s: %w", short(call.ID), err)
		}
		_ = report(r.Stderr, call, err, time.Now()) // there is nowhere else to tell
	}
	return status
}

// short shortens a container id as docker does.
func short(id string) string {
	const shown = 12
	if len(id) != 64 {
		return id
	}
	return id[:shown]
}

// serve does one command.
func (r *Runtime) serve(ctx context.Context, call Call, args []string) (int, error) {
	lowLevel, err := findLowLevel(r.Config.Runtimes, pathOf(r.Env), r.Self)
	if err != nil {
		return exitFailed, err
	}
	env, err := guarded(r.Env)
	if err != nil {
		return exitFailed, err
	}
	argv := append([]string{lowLevel}, args...)
	undo := func() error { return nil }
	switch {
	case call.makesContainer():
		o := &order{call: call, lowLevel: lowLevel, creator: os.Getpid(), nvidia: r.nvidiaFor(lowLevel)}
		if undo, err = r.create(ctx, o); err != nil {
			return exitFailed, err
		}
		lowLevel, argv[0] = o.lowLevel, o.lowLevel
	case call.Command == "delete":
		if claim, err := r.claimOf(call.ID); err == nil || errors.Is(err, orphans.ErrDamaged) {
			return r.delete(ctx, call, claim, err, argv, env)
		}
	}
	r.at("exec")
	err = r.Exec(lowLevel, argv, env) // returns only when it fails
	return exitFailed, errors.Join(fmt.Errorf("run %s: %w", lowLevel, err), undo())
}

// create edits the config of a container that is to be made.
func (r *Runtime) create(ctx context.Context, o *order) (undo func() error, err error) {
	bundle, err := OpenBundle(cmp.Or(o.call.Config, filepath.Join(o.call.Bundle, configName)))
	if err != nil {
		return nil, err
	}
	undo, err = r.admit(ctx, o, bundle.Spec)
	if err != nil {
		return nil, err
	}
	if err := bundle.Save(); err != nil {
		return nil, errors.Join(err, undo())
	}
	r.warnOfAdmin(o.call, bundle.Spec)
	r.at("written")
	return undo, nil
}

// pathOf is PATH of an environment.
func pathOf(env []string) string {
	for _, e := range env {
		if len(e) > 5 && e[:5] == "PATH=" {
			return e[5:]
		}
	}
	return ""
}

// statusOf is the exit status of a child as a shell has it.
func statusOf(state *os.ProcessState) int {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return state.ExitCode()
}
