package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

const hookUsage = "gpuslice-runtime hook {precreate|createRuntime|poststop} [--config=FILE]"

// precreate adds this failing hook to the config of a container that it refuses.
const (
	refuseStage  = "refuse"
	refuseReason = "--reason="
)

// podmansRuntime is in the record of a precreate hook, which does not get the low-level runtime.
const podmansRuntime = "podman's"

const maxInput = 16 << 20

// hookMain runs a hook. precreate (podman's) edits config.json from stdin to stdout. The others get
// the container's state on stdin (runtime-spec, "State").
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
		err = oci.WithState(r.Stdin, func(s rspec.State) error { return r.verify(ctx, s) })
	case "poststop":
		err = oci.WithState(r.Stdin, func(s rspec.State) error { return r.poststop(ctx, s, claim) })
	case refuseStage:
		err = errors.New(reason)
	default:
		err = fmt.Errorf("unknown hook %q: %s", stage, hookUsage)
	}
	if err != nil {
		_ = report(r.Stderr, Call{}, err, time.Now()) // nothing else can be done
		return exitFailed
	}
	return exitDone
}

// poststop releases a claim. The hook of hooks.d has no nonce: the container's ID can have a newer
// claim, with a creation that has not ended.
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
		return nil // a newer claim
	}
	return errors.Join(err, r.release(ctx, state.ID, claim.Nonce, ended))
}

// verify is createRuntime: it refuses a GPU without limits, and a request, which it can't fulfill.
func (r *Runtime) verify(ctx context.Context, state rspec.State) error {
	bundle, err := OpenBundle(filepath.Join(state.Bundle, configName))
	if err != nil {
		return err
	}
	if slice.Of(bundle.Spec) != "" {
		return nil // its hook reserves the share
	}
	c := oci.ContainerOf(state.ID, bundle.Spec)
	c.Majors = oci.HostDriverMajors()
	c.RequestNames = oci.HostRequestNames()
	limited, err := r.limited(ctx, c)
	if limited || err != nil {
		return err
	}
	if reason, holds := holdsGPU(c); holds {
		return fmt.Errorf("%s, but the container has no limits: start it with --runtime gpuslice-runtime and -e GPUSLICE_MEMORY=8GiB instead of the device", reason)
	}
	if oci.RequestsGPU(c) && callsNvidia(bundle.Spec) {
		return errors.New("NVIDIA's hook would inject a GPU (NVIDIA_VISIBLE_DEVICES), but the container has no limits: start it with --runtime gpuslice-runtime")
	}
	if r.ConfigProblem != nil {
		return r.ConfigProblem
	}
	requested, err := request.FromContainer(c.Env, c.Annotations, r.Config)
	if err != nil {
		return err
	}
	if requested != nil {
		return errors.New("the container requests a GPU share, which a createRuntime hook can't add: start it with --runtime gpuslice-runtime")
	}
	return nil
}

func (r *Runtime) limited(ctx context.Context, c oci.Container) (bool, error) {
	if done, err := r.limitedByNRI(ctx, c); done || err != nil {
		return done, err
	}
	if _, err := r.claimOf(c.ID); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return r.mountsLimits(c), nil
}

func callsNvidia(spec *rspec.Spec) bool {
	if spec.Hooks == nil {
		return false
	}
	//lint:ignore SA1019 it is deprecated, and NVIDIA's hook is one
	return slices.ContainsFunc(slices.Concat(spec.Hooks.Prestart, spec.Hooks.CreateRuntime), func(h rspec.Hook) bool {
		return slices.Contains([]string{"nvidia-container-runtime-hook", "nvidia-container-toolkit"}, filepath.Base(h.Path))
	})
}

// precreate does what create does, before podman writes the config.
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
	cr := &creation{
		call: Call{Command: "create", ID: id, Bundle: dir}, lowLevel: podmansRuntime, creator: os.Getppid(),
	}
	undo, err := r.admit(ctx, cr, bundle.Spec)
	if err != nil {
		return r.refuse(data, fmt.Errorf("container %s: %w", oci.ShortID(id), err))
	}
	if err := r.print(bundle); err != nil {
		return errors.Join(err, undo())
	}
	return nil
}

func (r *Runtime) print(bundle *Bundle) error {
	data, _, err := bundle.encode()
	if err == nil {
		_, err = r.Stdout.Write(data)
	}
	if err != nil {
		return fmt.Errorf("write the container's config to stdout: %w", err)
	}
	return nil
}

// refuse writes a config in which the first hook fails: podman (4.3) does not show the output of precreate.
func (r *Runtime) refuse(config []byte, reason error) error {
	bundle, err := decodeBundle(config) // without changes of admit
	if err != nil {
		return errors.Join(reason, err)
	}
	if bundle.Spec.Hooks == nil {
		bundle.Spec.Hooks = &rspec.Hooks{}
	}
	hooks := &bundle.Spec.Hooks.CreateRuntime
	*hooks = append([]rspec.Hook{{Path: r.Self, Args: r.hookArgs(refuseStage, refuseReason+reason.Error())}}, *hooks...)
	if err := r.print(bundle); err != nil {
		return errors.Join(reason, err)
	}
	return nil
}

// precreated reports whether podman's precreate hook has reserved the share, and podman now calls
// this program as the runtime. The spec is not sufficient.
func (r *Runtime) precreated(cr *creation, c oci.Container) bool {
	if cr.lowLevel == podmansRuntime || !r.mountsLimits(c) {
		return false
	}
	claim, err := r.claimOf(c.ID)
	return err == nil && claim.Runtime == podmansRuntime && orphans.NewJudge().Proc.Lives(claim.Creator)
}

// podman's config has the container's ID only in the cgroup and in mounts.
var (
	podmanCgroup = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`libpod[-:]([0-9a-f]{64})(\.scope)?(/|$)`)
	})
	podmanFile = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(.*/[a-z0-9]+-containers/([0-9a-f]{64})/userdata)/`)
	})
)

// podmanContainer returns empty values if unknown; the ledger then refuses the claim.
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
