package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/oci"
)

func (r *Runtime) claimOf(id string) (orphans.Record, error) {
	if ledger.ValidateContainerID(id) != nil {
		return orphans.Record{}, fs.ErrNotExist
	}
	return orphans.Read(ledger.DirOf(r.Config.StateDir, id))
}

// delete runs the low-level runtime's delete and then releases the claim, if the container is gone.
// damaged is the error of reading the claim's record.
func (r *Runtime) delete(ctx context.Context, call Call, claim orphans.Record, damaged error, argv, env []string) (int, error) {
	child := &exec.Cmd{Path: argv[0], Args: argv, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	signals := forwarded()
	defer signal.Stop(signals)
	status, err := runChild(child, signals, child.Start)
	if err != nil {
		return exitFailed, err
	}
	if damaged != nil {
		fmt.Fprintf(r.Stderr, "gpuslice: container %s: %v: its GPU share is released when no process uses the directory\n", oci.ShortID(call.ID), damaged)
	}
	if err := r.release(ctx, call.ID, claim.Nonce, false); err != nil {
		// The next creation releases it.
		fmt.Fprintf(r.Stderr, "gpuslice: container %s: release its GPU share: %v\n", oci.ShortID(call.ID), err)
	}
	return status, nil
}

func (r *Runtime) release(ctx context.Context, id, nonce string, ended bool) error {
	if _, err := os.Stat(r.Config.StateDir); err != nil {
		return nil // no ledger, no claim
	}
	return r.withReleaser(ctx, func(ctx context.Context, releaser orphans.Releaser) error {
		return releaser.Release(ctx, id, nonce, ended)
	})
}

// forwarded are the signals that this process forwards to a program. One that is ignored, as by nohup, stays so, also in the program:
// Go's handlers become the default there. A stop by the terminal stops both.
func forwarded() chan os.Signal {
	var all []os.Signal
	for s := unix.Signal(1); s <= lastSignal; s++ {
		switch s {
		case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCONT:
		default:
			if !signal.Ignored(s) {
				all = append(all, s)
			}
		}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, all...)
	return signals
}

// lastSignal is SIGRTMAX.
const lastSignal = unix.Signal(64)

// endedBefore returns an error if a signal arrived that a program which has not started can't get.
func endedBefore(signals <-chan os.Signal) error {
	for {
		select {
		case s := <-signals:
			if !own(s) && s != unix.SIGWINCH {
				return fmt.Errorf("signal before the start of the command: %v", s)
			}
		default:
			return nil
		}
	}
}

// own reports whether a signal is for this process.
func own(s os.Signal) bool { return s == unix.SIGCHLD || s == unix.SIGURG || s == unix.SIGPIPE }

// runChild runs a program to its end and forwards signals to it, but not those of the terminal: it gets them itself.
func runChild(child *exec.Cmd, signals <-chan os.Signal, start func() error) (status int, err error) {
	if err := start(); err != nil {
		return exitFailed, fmt.Errorf("run %s: %w", child.Path, err)
	}
	done := make(chan error, 1)
	go func() { done <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			if !own(s) && !(ofTerminal(s) && inForeground()) {
				_ = child.Process.Signal(s)
			}
		case err := <-done:
			if err != nil && !errors.As(err, new(*exec.ExitError)) {
				return exitFailed, fmt.Errorf("run %s: %w", child.Path, err)
			}
			return statusOf(child.ProcessState), nil
		}
	}
}

func ofTerminal(s os.Signal) bool {
	return s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGHUP || s == unix.SIGWINCH
}

// inForeground reports whether the terminal sends its signals to this process group, and so to the child.
func inForeground() bool {
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer terminal.Close()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
