package ociruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/claimed"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// hookUsage is how hooks are called.
const hookUsage = "gpuslice-runtime hook {precreate|createRuntime|poststop} [--config=FILE]"

// refuseStage and refuseReason are of a hook that precreate writes into the config of a
// container that it refuses. It does no more than to fail with the reason.
const (
	refuseStage  = "refuse"
	refuseReason = "--reason="
)

// podmansRuntime stands in a claim's record for the low-level runtime, which a precreate
// hook isn't told.
const podmansRuntime = "podman's"

// maxInput bounds what is read of a hook's input.
const maxInput = 16 << 20

// hookMain runs one hook and returns its exit status.
//
//   - precreate (podman's hooks.d only) gives a container its share: config.json comes on
//     stdin and goes to stdout, with a hook that fails where the container is refused.
//   - createRuntime can't change the container. It refuses one that has a GPU without
//     limits, or asks for a share that nobody gave it.
//   - poststop gives the share back.
//
// The last two get the container's state on stdin (runtime-spec, runtime.md, "State").
func (r *Runtime) hookMain(ctx context.Context, args []string) int {
	stage, claim, reason := "", "", ""
	for _, arg := range args {
		if nonce, ok := strings.CutPrefix(arg, "--claim="); ok {
			claim = nonce
		} else if text, ok := strings.CutPrefix(arg, refuseReason); ok {
			reason = text
		} else if !strings.HasPrefix(arg, "-") {
			stage = arg
		}
	}
	var err error
	switch stage {
	case "precreate":
		err = r.precreate(ctx)
	case "createRuntime":
		err = r.withState(func(s rspec.State) error { return r.verify(ctx, s) })
	case "poststop":
		err = r.withState(func(s rspec.State) error { return r.poststop(ctx, s, claim) })
	case refuseStage:
		err = errors.New(reason)
	default:
		err = fmt.Errorf("hook %q is not known: %s", stage, hookUsage)
	}
	if err != nil {
		_ = report(r.Stderr, Call{}, err, time.Now()) // there is nowhere else to tell
		return exitFailed
	}
	return exitDone
}

// withState reads the container's state.
func (r *Runtime) withState(do func(rspec.State) error) error {
	var state rspec.State
	if err := json.NewDecoder(io.LimitReader(r.Stdin, maxInput)).Decode(&state); err != nil {
		return fmt.Errorf("read the container's state on stdin: %w", err)
	}
	if err := do(state); err != nil {
		return fmt.Errorf("container %s: %w", short(state.ID), err)
	}
	return nil
}

// poststop gives back what a container had. The hook in its config names the claim by its
// nonce. One without (hooks.d) is of the container's id only, which can have a newer claim
// by now: that one's creation isn't over.
func (r *Runtime) poststop(ctx context.Context, state rspec.State, nonce string) error {
	claim, err := r.claimOf(state.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil && !errors.Is(err, orphans.ErrDamaged) {
		return err
	}
	ended := nonce != "" && nonce == claim.Nonce
	if nonce != "" && !ended && err == nil {
		return nil // a newer one
	}
	return errors.Join(err, r.giveBack(ctx, state.ID, claim.Nonce, ended))
}

// verify refuses a container that has, or asks for, what it was not given.
func (r *Runtime) verify(ctx context.Context, state rspec.State) error {
	bundle, err := OpenBundle(filepath.Join(state.Bundle, configName))
	if err != nil {
		return err
	}
	if slice.Of(bundle.Spec) != "" {
		return nil // its own hook checks and books it
	}
	c := oci.ContainerOf(state.ID, bundle.Spec)
	c.Majors = oci.HostDriverMajors()
	c.RequestNames = oci.HostRequestNames()
	limited, err := r.limited(ctx, c)
	if limited || err != nil {
		return err
	}
	if reason, holds := holdsGPU(c); holds {
		return fmt.Errorf("%s, and it has no limits: start the container with --runtime gpuslice-runtime and -e GPUSLICE_MEMORY=8GiB in place of the device", reason)
	}
	if oci.AsksForGPU(c) && callsNvidia(bundle.Spec) {
		return errors.New("NVIDIA's hook is to give it a GPU (NVIDIA_VISIBLE_DEVICES), and it has no limits: start the container with --runtime gpuslice-runtime")
	}
	if r.ConfigProblem != nil {
		return r.ConfigProblem
	}
	requested, err := request.FromContainer(c.Env, c.Annotations, r.Config)
	if err != nil {
		return err
	}
	if requested != nil {
		return errors.New("it asks for a share of a GPU, and a hook of this stage can't give it one: start the container with --runtime gpuslice-runtime")
	}
	return nil
}

// limited says whether a container's limits are in place: it mounts them from a claim's
// directory under its own id, which is there.
func (r *Runtime) limited(ctx context.Context, c oci.Container) (bool, error) {
	if done, err := r.limitedByNRI(ctx, c); done || err != nil {
		return done, err
	}
	if _, err := r.claimOf(c.ID); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return r.mountsLimits(c), nil
}

// callsNvidia says whether a spec has the hook by which NVIDIA's runtime injects GPUs.
func callsNvidia(spec *rspec.Spec) bool {
	if spec.Hooks == nil {
		return false
	}
	//lint:ignore SA1019 it is deprecated, and NVIDIA's hook is one
	for _, h := range append(spec.Hooks.Prestart, spec.Hooks.CreateRuntime...) {
		switch filepath.Base(h.Path) {
		case "nvidia-container-runtime-hook", "nvidia-container-toolkit":
			return true
		}
	}
	return false
}

// precreate gives a container its share before podman writes its config.
func (r *Runtime) precreate(ctx context.Context) error {
	data, err := io.ReadAll(io.LimitReader(r.Stdin, maxInput))
	if err != nil {
		return fmt.Errorf("read the container's config on stdin: %w", err)
	}
	bundle, err := decodeBundle(data)
	if err != nil {
		return fmt.Errorf("read the container's config on stdin: %w", err)
	}
	id, dir := podmanContainer(bundle.Spec)
	o := &order{
		call: Call{Command: "create", ID: id, Bundle: dir}, lowLevel: podmansRuntime, creator: os.Getppid(),
	}
	undo, err := r.admit(ctx, o, bundle.Spec)
	if err != nil {
		return r.refuse(data, fmt.Errorf("container %s: %w", short(id), err))
	}
	data, _, err = bundle.encode()
	if err == nil {
		_, err = r.Stdout.Write(data)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the container's config to stdout: %w", err), undo())
	}
	return nil
}

// refuse answers with the config of a container that can't be made: its first hook fails
// with the reason. If precreate failed itself, podman (4.3) would show the exit status
// and nothing that was said.
func (r *Runtime) refuse(config []byte, reason error) error {
	bundle, err := decodeBundle(config) // as it was
	if err != nil {
		return errors.Join(reason, err)
	}
	if bundle.Spec.Hooks == nil {
		bundle.Spec.Hooks = &rspec.Hooks{}
	}
	hooks := &bundle.Spec.Hooks.CreateRuntime
	*hooks = append([]rspec.Hook{{Path: r.Self, Args: r.hookArgs(refuseStage, refuseReason+reason.Error())}}, *hooks...)
	config, _, err = bundle.encode()
	if err == nil {
		_, err = r.Stdout.Write(config)
	}
	if err != nil {
		return errors.Join(reason, err)
	}
	return nil
}

// precreated says whether podman's precreate hook has given the container its share a
// moment ago, and podman now has this program make it, as where both are installed. The
// word of its spec is not enough.
func (r *Runtime) precreated(o *order, c oci.Container) bool {
	if o.lowLevel == podmansRuntime || !r.mountsLimits(c) {
		return false
	}
	claim, err := r.claimOf(c.ID)
	return err == nil && claim.Runtime == podmansRuntime && orphans.NewJudge().Proc.Lives(claim.Creator)
}

// What podman's configs say of the container's id, which they don't name: a cgroup
// (libpod-<id>, libpod:<id>) and files of its directory.
var (
	podmanCgroup = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`libpod[-:]([0-9a-f]{64})(\.scope)?(/|$)`)
	})
	podmanFile = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(.*/[a-z0-9]+-containers/([0-9a-f]{64})/userdata)/`)
	})
)

// podmanContainer finds out the id and the bundle of one of podman's containers; empty
// where it can't, so that a claim is refused.
func podmanContainer(spec *rspec.Spec) (id, bundle string) {
	if spec.Linux != nil {
		if m := podmanCgroup().FindStringSubmatch(spec.Linux.CgroupsPath); m != nil {
			id = m[1]
		}
	}
	for _, mount := range spec.Mounts {
		m := podmanFile().FindStringSubmatch(mount.Source)
		if m != nil && (id == "" || id == m[2]) {
			return m[2], m[1]
		}
	}
	return id, ""
}
