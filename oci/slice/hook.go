package slice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Command is the name of Main's command, and its two actions.
const (
	Command       = "slice"
	actionClaim   = "claim"
	actionRelease = "release"
)

// The options of Main, each with "=" and its value.
const (
	optionName  = "--name"
	optionState = "--state-dir"
)

// patience bounds how long a hook waits for a lock: less than daemons wait for a runtime.
const patience = 30 * time.Second

// maxInput bounds what is read of a state.
const maxInput = 16 << 20

// hookEnv is the hooks' environment: without one, runtimes give a hook theirs, or the
// container's.
const hookEnv = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// Hooks are the hooks of a slice's CDI device; program is gpuslice-runtime's path.
func Hooks(program, stateDir, name string) []*cdispec.Hook {
	hook := func(stage, action string) *cdispec.Hook {
		return &cdispec.Hook{HookName: stage, Path: program, Args: []string{
			filepath.Base(program), Command, action, optionState + "=" + stateDir, optionName + "=" + name,
		}, Env: []string{hookEnv}}
	}
	return []*cdispec.Hook{hook("createRuntime", actionClaim), hook("poststop", actionRelease)}
}

// Of is the name of the slice that a container's spec has, empty for none: whose hook
// it has, which only who writes CDI specs or hooks can bring there. Such a container is
// checked and booked by the hook; nobody else has to.
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

// option is the value of an option, empty where it isn't there.
func option(args []string, name string) string {
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, name+"=") })
	if i < 0 {
		return ""
	}
	return strings.TrimPrefix(args[i], name+"=")
}

// Main runs a slice's hook, with the container's state on stdin, and returns the exit
// status: 0 it is done, 1 the container is refused, and stderr says why.
func Main(ctx context.Context, args []string, stdin io.Reader, stderr io.Writer) int {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took longer than %v", patience))
	defer cancel()
	err := run(ctx, args, stdin)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "gpuslice: %v\n", err)
	return 1
}

func run(ctx context.Context, args []string, stdin io.Reader) error {
	if len(args) == 0 {
		return errors.New("slice: want claim or release")
	}
	name, stateDir := option(args, optionName), option(args, optionState)
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") || !filepath.IsAbs(stateDir) {
		return fmt.Errorf("slice %s: want %s=DIR and %s=NAME", args[0], optionState, optionName)
	}
	var state rspec.State
	if err := json.NewDecoder(io.LimitReader(stdin, maxInput)).Decode(&state); err != nil {
		return fmt.Errorf("slice %s: read the container's state: %w", name, err)
	}
	var err error
	switch args[0] {
	case actionClaim:
		var spec *rspec.Spec
		if spec, err = readSpec(state.Bundle); err == nil {
			err = claim(ctx, stateDir, name, state, spec)
		}
	case actionRelease:
		err = release(ctx, stateDir, name, state)
	default:
		err = fmt.Errorf("%q is not known: want claim or release", args[0])
	}
	if err != nil {
		return fmt.Errorf("container %s: slice %s: %w", short(state.ID), name, err)
	}
	return nil
}

// readSpec reads a bundle's config.json.
func readSpec(bundle string) (*rspec.Spec, error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's bundle: %w", err)
	}
	var spec rspec.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("read the container's bundle %s: %w", bundle, err)
	}
	return &spec, nil
}
