package ociruntime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
)

const (
	exitDone   = 0
	exitFailed = 1
)

type Runtime struct {
	// If ConfigProblem is set, no container is created; other commands work.
	Config         request.Config
	ConfigProblem  error
	Self           string
	Version        string // of this program, before the low-level runtime's
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// GPUs and Limiter are called only for a container with a request.
	GPUs    func(ctx context.Context) (GPUs, error)
	Limiter func() (Limiter, error)
	Exec    func(path string, argv, env []string) error
	// NoNative returns why the driver has no memory limits; it is called for memoryEnforcement: auto.
	NoNative func() error

	step func(string) // for tests
}

// at is where a test can kill this process.
func (r *Runtime) at(step string) {
	if r.step != nil {
		r.step(step)
	}
}

// Main runs a command line without the program's name, and returns the exit status if it does not
// exec the low-level runtime.
func (r *Runtime) Main(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] == "hook" {
		return r.hookMain(ctx, args[1:])
	}
	call, err := Parse(args)
	if err != nil && !call.createsContainer() {
		err = nil // the low-level runtime reports it
	}
	if call.Version && call.Command == "" { // docker takes the last line with "version", which is the low-level runtime's
		fmt.Fprintf(r.Stdout, "gpuslice-runtime version %s\n", r.Version)
	}
	status := exitFailed
	if err == nil {
		status, err = r.serve(ctx, call, args)
	}
	if err != nil {
		if call.ID != "" && call.createsContainer() {
			err = fmt.Errorf("container %s: %w", oci.ShortID(call.ID), err)
		}
		_ = report(r.Stderr, call, err, time.Now())
	}
	return status
}

func (r *Runtime) serve(ctx context.Context, call Call, args []string) (int, error) {
	lowLevel, err := findLowLevel(r.Config.Runtimes, pathOf(r.Env), r.Self)
	if err != nil {
		return exitFailed, err
	}
	env, err := withRecursionEnv(r.Env)
	if err != nil {
		return exitFailed, err
	}
	argv := append([]string{lowLevel}, args...)
	undo := func() error { return nil }
	switch {
	case call.createsContainer():
		cr := &creation{call: call, lowLevel: lowLevel, creator: os.Getpid(), nvidia: r.nvidiaFor(lowLevel)}
		if undo, err = r.create(ctx, cr); err != nil {
			return exitFailed, err
		}
		lowLevel, argv[0] = cr.lowLevel, cr.lowLevel
	case call.Command == "delete":
		if claim, err := r.claimOf(call.ID); err == nil || errors.Is(err, orphans.ErrDamaged) {
			return r.delete(ctx, call, claim, err, argv, env)
		}
	}
	r.at("exec")
	err = r.Exec(lowLevel, argv, env) // returns only when it fails
	return exitFailed, errors.Join(fmt.Errorf("run %s: %w", lowLevel, err), undo())
}

func (r *Runtime) create(ctx context.Context, cr *creation) (undo func() error, err error) {
	bundle, err := OpenBundle(cmp.Or(cr.call.Config, filepath.Join(cr.call.Bundle, configName)))
	if err != nil {
		return nil, err
	}
	undo, err = r.admit(ctx, cr, bundle.Spec)
	if err != nil {
		return nil, err
	}
	err = cr.call.checkRestore(bundle.Spec)
	if err == nil {
		err = bundle.Save()
	}
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	r.warnOfAdmin(cr.call, bundle.Spec)
	r.at("written")
	return undo, nil
}

func pathOf(env []string) string {
	for _, e := range env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			return path
		}
	}
	return ""
}

func statusOf(state *os.ProcessState) int {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return state.ExitCode()
}

// report writes an error to stderr and to --log, from which engines show it.
func report(stderr io.Writer, c Call, problem error, now time.Time) error {
	text := "gpuslice: " + problem.Error()
	_, err := fmt.Fprintln(stderr, text)
	if c.Log == "" || c.Log == "/dev/stderr" {
		return err
	}
	return errors.Join(err, c.log("error", text, now))
}

// warn writes a warning to --log. It avoids stderr, which is the container's too.
func warn(stderr io.Writer, c Call, warning string, now time.Time) error {
	text := "gpuslice: " + warning
	if c.Log == "" || c.Log == "/dev/stderr" {
		_, err := fmt.Fprintln(stderr, text)
		return err
	}
	return c.log("warning", text, now)
}

func (c Call) log(level, text string, now time.Time) error {
	stamp := now.Format(time.RFC3339)
	line := fmt.Appendf(nil, "time=%q level=%s msg=%q", stamp, level, text)
	if c.LogFormat == "json" {
		line, _ = json.Marshal(map[string]string{"level": level, "msg": text, "time": stamp})
	}
	f, err := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
