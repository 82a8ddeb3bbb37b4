package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/claimed"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// claimPatience bounds how long a creation waits for the ledger and the GPUs. It is
// less than what daemons wait for a runtime.
const claimPatience = 30 * time.Second

// enforcementAnnotation says how a container's limits are enforced, as the NRI plugin's.
const enforcementAnnotation = "gpuslice.io/enforcement"

// order is one container that is to be made.
type order struct {
	call Call
	// lowLevel is the runtime that will make it, and creator the process.
	lowLevel string
	creator  int
	// nvidia is NVIDIA's runtime, used instead of lowLevel if necessary; empty if it can't be.
	nvidia string
}

// admit decides about a container and changes its spec. For one that gets a share of a
// GPU the claim is booked when it returns; undo gives it back. An error leaves nothing
// booked, and the container must not be made.
func (r *Runtime) admit(ctx context.Context, o *order, spec *rspec.Spec) (undo func() error, err error) {
	undo = func() error { return nil }
	if r.ConfigProblem != nil {
		return undo, r.ConfigProblem
	}
	ctx, cancel := context.WithTimeoutCause(ctx, claimPatience,
		fmt.Errorf("it took longer than %v", claimPatience))
	defer cancel()

	if slice.Of(spec) != "" {
		return undo, nil // its hook checks and books it
	}
	c := oci.ContainerOf(o.call.ID, spec)
	c.Majors = oci.HostDriverMajorsFor(c)
	c.RequestNames = oci.HostRequestNames()
	if isPod(c) {
		return undo, r.admitPod(ctx, o, spec, c)
	}
	if done, err := r.limitedByNRI(ctx, c); done || err != nil {
		return undo, err
	}
	if r.precreated(o, c) {
		return undo, nil
	}
	requested, err := request.FromContainer(c.Env, c.Annotations, r.Config)
	if err != nil {
		return undo, err
	}
	if requested == nil {
		return undo, withoutRequest(spec, c)
	}
	return r.withRequest(ctx, o, spec, c, requested)
}

// warnOfAdmin writes a warning for a container that can open GPUs whatever it was given.
func (r *Runtime) warnOfAdmin(call Call, spec *rspec.Spec) {
	if !oci.AdministersNode(spec) || r.isExempt(call, oci.ContainerOf(call.ID, spec)) {
		return
	}
	_ = warn(r.Stderr, call, fmt.Sprintf("container %s has CAP_SYS_ADMIN, by which it can replace its limits and, on nodes with cgroup v1, open every GPU (docs/SECURITY.md, \"What the limiter doesn't hold\")",
		short(call.ID)), time.Now()) // a container is not refused for a log that can't be written
}

// withoutRequest takes back what a container that asks for no share has of GPUs, or
// refuses it.
func withoutRequest(spec *rspec.Spec, c oci.Container) error {
	if reason, holds := holdsGPU(c); holds {
		return fmt.Errorf("the container asks for no share of a GPU, and %s, which has no limits: ask for a share in its place (-e GPUSLICE_MEMORY=8GiB)", reason)
	}
	return oci.Apply(spec, oci.Void(c))
}

// holdsGPU says what a container without a request has of GPUs. A privileged one has the
// nodes as root of the machine; the driver's libraries it was given by a CDI device, or by
// hand.
func holdsGPU(c oci.Container) (reason string, holds bool) {
	if reason, holds = oci.HoldsGPU(c); !holds && c.Privileged {
		return oci.MountsDriver(c)
	}
	return reason, holds
}

// limitedByNRI says whether the NRI plugin has limited the container, which then is
// Kubernetes' and goes by as it is. The word of its spec is not enough.
func (r *Runtime) limitedByNRI(ctx context.Context, c oci.Container) (bool, error) {
	if !r.mountsLimits(c) {
		return false, nil
	}
	reader, err := ledger.OpenReadOnly(r.Config.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now, err := reader.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	for _, e := range now.Entries {
		if e.ContainerID == c.ID && e.Owner == ledger.OwnerNRI && e.State == ledger.StateActive {
			return true, nil
		}
	}
	return false, nil
}

// mountsLimits says whether a container mounts the limits of the claim of its own id.
func (r *Runtime) mountsLimits(c oci.Container) bool {
	return oci.MountsFiles(c.Mounts, filepath.Join(r.Config.StateDir, "containers", c.ID))
}

// withRequest gives a container its share: chooses the GPUs, books them, and edits the
// spec. Everything that can be refused is refused before anything is booked.
func (r *Runtime) withRequest(ctx context.Context, o *order, spec *rspec.Spec, c oci.Container, requested *request.Request) (func() error, error) {
	undo := func() error { return nil }
	if err := ledger.ValidateContainerID(c.ID); err != nil {
		return undo, err
	}
	gpus, err := r.GPUs(ctx)
	if err != nil {
		return undo, forRoot(err)
	}
	limiter, err := r.Limiter()
	if err != nil {
		return undo, forRoot(err)
	}
	ledger, err := ledger.Open(r.Config.StateDir, ledger.WithRecovery(oci.RecoverShares))
	if err != nil {
		return undo, forRoot(err)
	}
	defer ledger.Close()

	b := booking{
		runtime: r, order: o, gpus: gpus, request: requested,
		settings: r.settings(o, limiter, gpus),
		releaser: orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()},
	}
	b.container = c
	if b.container.Rootfs, err = rootfsFacts(o.call.Bundle, spec); err != nil {
		return undo, err
	}
	b.container.Dir = ledger.Dir(c.ID)
	b.container.Uncontrolled = r.Config.AllowControlSwitch && oci.AsksForNoControl(c)
	if err := b.book(ctx, spec); err != nil {
		return undo, err
	}
	return func() error { return r.giveUp(c.ID, b.record.Nonce) }, nil
}

// forRoot says what to do where somebody lacks the right to what a share needs.
func forRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: shares of a GPU are booked as root, in the node's one ledger: start the container with a daemon that runs as root", err)
	}
	return err
}

// settings are the node's, as package oci wants them.
func (r *Runtime) settings(o *order, limiter Limiter, gpus GPUs) oci.Settings {
	s := oci.Settings{
		Injection:              oci.Injection(r.Config.DeviceInjection),
		LibraryPath:            limiter.Library,
		PreloadPath:            limiter.Preload,
		LimiterMode:            oci.LimiterMode(r.Config.LimiterMode),
		Fronts:                 limiter.Fronts,
		DefaultRuntimeIsNvidia: isNvidia(o.lowLevel) || o.nvidia != "",
		NvidiaAdvice:           o.advice(),
		Graphics:               r.Config.Graphics,
		CorePolicy:             oci.CorePolicy(r.Config.CorePolicy),
		Oversubscription:       gpus.Oversubscription,
		ContextMiB:             gpus.ContextMiB,
	}
	if r.Config.ContextMemoryMiB >= 0 {
		s.ContextMiB = map[string]int64{}
		for uuid := range gpus.Capacity {
			s.ContextMiB[uuid] = int64(r.Config.ContextMemoryMiB)
		}
	}
	return s
}

// advice says what to do where no CDI spec has the GPUs and NVIDIA's runtime isn't used.
func (o *order) advice() string {
	const spec = "run gpuslice cdi generate --driver, or nvidia-ctk cdi generate"
	if o.lowLevel == podmansRuntime {
		return "a hook of podman's can't have NVIDIA's runtime make the container: " + spec
	}
	return fmt.Sprintf("the low-level runtime %s does not inject GPUs, and nvidia-container-runtime is not there or can't take its place: %s, or put nvidia-container-runtime first into runtimes of the operator's config", o.lowLevel, spec)
}

// rootfsFacts looks into the container's root file system, which is mounted by now.
func rootfsFacts(bundle string, spec *rspec.Spec) (*oci.Rootfs, error) {
	if spec.Root == nil {
		return nil, errors.New("its config names no root file system")
	}
	path := spec.Root.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(bundle, path)
	}
	var env []string
	if spec.Process != nil {
		env = spec.Process.Env
	}
	return oci.RootfsFacts(path, env)
}

// giveUp gives back a claim whose container was not made.
func (r *Runtime) giveUp(id, nonce string) error {
	ctx, cancel := context.WithTimeout(context.Background(), claimPatience)
	defer cancel()
	ledger, err := ledger.Open(r.Config.StateDir)
	if err != nil {
		return err
	}
	defer ledger.Close()
	return orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}.Drop(ctx, id, nonce)
}
