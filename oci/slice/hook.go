package slice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/oci"
)

// Command is Main's command of gpuslice-runtime.
const Command = "slice"

// An option is "NAME=VALUE" in one argument.
const (
	actionClaim   = "claim"
	actionRelease = "release"
	optionName    = "--name"
	optionState   = "--state-dir"
)

// maxWait is less than daemons wait for a runtime.
const maxWait = 30 * time.Second

// Without hookEnv, hooks get the runtime's environment, or the container's.
const hookEnv = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// Hooks returns the hooks of a slice; program is gpuslice-runtime.
func Hooks(program, stateDir, name string) []*cdispec.Hook {
	hook := func(stage, action string) *cdispec.Hook {
		return &cdispec.Hook{HookName: stage, Path: program, Args: []string{
			filepath.Base(program), Command, action, optionState + "=" + stateDir, optionName + "=" + name,
		}, Env: []string{hookEnv}}
	}
	return []*cdispec.Hook{hook("createRuntime", actionClaim), hook("poststop", actionRelease)}
}

// Of returns the slice of a container's hook, or "". Only root can add hooks. The hook makes the claim.
func Of(spec *rspec.Spec) string {
	if spec == nil || spec.Hooks == nil {
		return ""
	}
	for _, h := range spec.Hooks.CreateRuntime {
		if len(h.Args) > 2 && h.Args[1] == Command && h.Args[2] == actionClaim {
			return option(h.Args[3:], optionName)
		}
	}
	return ""
}

func option(args []string, name string) string {
	for _, arg := range args {
		if value, is := strings.CutPrefix(arg, name+"="); is {
			return value
		}
	}
	return ""
}

// Main runs a slice's hook, with the container's state on stdin. Status 1 refuses the container, with the reason on
// stderr.
func Main(ctx context.Context, args []string, stdin io.Reader, stderr io.Writer) int {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, fmt.Errorf("it took longer than %v", maxWait))
	defer cancel()
	return exit(stderr, run(ctx, args, stdin))
}

func exit(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "gpuslice: %v\n", err)
	return 1
}

func run(ctx context.Context, args []string, stdin io.Reader) error {
	if len(args) == 0 {
		return errors.New("slice: the argument must be claim or release")
	}
	name, stateDir := option(args, optionName), option(args, optionState)
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") || !filepath.IsAbs(stateDir) {
		return fmt.Errorf("slice %s: set %s=DIR and %s=NAME", args[0], optionState, optionName)
	}
	state, err := oci.ReadState(stdin)
	if err != nil {
		return fmt.Errorf("slice %s: %w", name, err)
	}
	switch args[0] {
	case actionClaim:
		var spec *rspec.Spec
		if spec, err = oci.ReadSpec(state.Bundle); err == nil {
			err = claim(ctx, stateDir, name, state, spec)
		}
	case actionRelease:
		err = release(ctx, stateDir, name, state)
	default:
		err = fmt.Errorf("unknown argument %q: use claim or release", args[0])
	}
	if err != nil {
		return fmt.Errorf("container %s: slice %s: %w", oci.ShortID(state.ID), name, err)
	}
	return nil
}
