package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// claimOf is the record of a container's claim; fs.ErrNotExist where it has none, and
// orphans.ErrDamaged where it can't be read.
func (r *Runtime) claimOf(id string) (orphans.Record, error) {
	if ledger.ValidateContainerID(id) != nil {
		return orphans.Record{}, fs.ErrNotExist
	}
	return orphans.Read(filepath.Join(r.Config.StateDir, "containers", id))
}

// delete has the low-level runtime delete a container that has a claim, and then gives
// the claim back: not before, for until then its processes may have the GPU. A delete
// that fails because there is no container gives it back too. So does nobody's delete:
// the next creation does, see sweep.
//
// damaged is why the claim's record can't be read, which then has no nonce.
func (r *Runtime) delete(ctx context.Context, call Call, claim orphans.Record, damaged error, argv, env []string) (int, error) {
	status, err := runChild(argv, env)
	if err != nil {
		return exitFailed, err
	}
	if damaged != nil {
		fmt.Fprintf(r.Stderr, "gpuslice: container %s: %v: its share of the GPU is given back once no process uses the directory\n", short(call.ID), damaged)
	}
	if err := r.giveBack(ctx, call.ID, claim.Nonce, false); err != nil {
		// The container is gone; its claim goes with the next creation.
		fmt.Fprintf(r.Stderr, "gpuslice: container %s: give its share of the GPU back: %v\n", short(call.ID), err)
	}
	return status, nil
}

// giveBack releases a claim if its container is gone.
func (r *Runtime) giveBack(ctx context.Context, id, nonce string, ended bool) error {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	if _, err := os.Stat(r.Config.StateDir); err != nil {
		return nil // no ledger, no claim
	}
	ledger, err := ledger.Open(r.Config.StateDir)
	if err != nil {
		return err
	}
	defer ledger.Close()
	return orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}.Release(ctx, id, nonce, ended)
}

// runChild runs a program to its end in our place: with our files, and with the signals
// that come to us.
func runChild(argv, env []string) (status int, err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	defer signal.Stop(signals)

	child := &exec.Cmd{Path: argv[0], Args: argv, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if err := child.Start(); err != nil {
		return exitFailed, fmt.Errorf("run %s: %w", argv[0], err)
	}
	done := make(chan error, 1)
	go func() { done <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			switch s {
			case unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE: // our own: the child's end, Go's scheduler
			default:
				_ = child.Process.Signal(s) // it may have ended
			}
		case err := <-done:
			if err != nil && !errors.As(err, new(*exec.ExitError)) {
				return exitFailed, fmt.Errorf("run %s: %w", argv[0], err)
			}
			return statusOf(child.ProcessState), nil
		}
	}
}
