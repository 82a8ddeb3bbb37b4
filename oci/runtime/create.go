package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/oci/slice"
)

// claimTimeout is less than what daemons wait for a runtime.
const claimTimeout = 30 * time.Second

type creation struct {
	call     Call
	lowLevel string
	creator  int
	nvidia   string // NVIDIA's runtime if it can replace lowLevel
	process  string // the name of a process of the host; "" is a container
}

// admit edits a container's spec and reserves its shares; undo releases them. After an error nothing
// is reserved, and the container must not be created.
func (r *Runtime) admit(ctx context.Context, cr *creation, spec *rspec.Spec) (undo func() error, err error) {
	undo = func() error { return nil }
	if r.ConfigProblem != nil {
		return undo, r.ConfigProblem
	}
	ctx, cancel := context.WithTimeoutCause(ctx, claimTimeout, fmt.Errorf("timeout after %v", claimTimeout))
	defer cancel()

	if slice.Of(spec) != "" {
		return undo, nil // its hook reserves the share
	}
	c := oci.ContainerOf(cr.call.ID, spec)
	c.Majors = oci.HostDriverMajorsFor(c)
	c.RequestNames = oci.HostRequestNames()
	if isPod(c) {
		return undo, r.admitPod(ctx, cr, spec, c)
	}
	if done, err := r.limitedByNRI(ctx, c); done || err != nil {
		return undo, err
	}
	if r.precreated(cr, c) {
		return undo, nil
	}
	requested, err := request.FromContainer(c.Env, c.Annotations, r.Config)
	if err != nil {
		return undo, err
	}
	if requested == nil {
		if hasGPUsFlag(spec, c) {
			return undo, fmt.Errorf("docker's --gpus (in compose: reservations.devices) requests whole GPUs, which this host does not allow: request a share (-e %s=8GiB), or set allowWholeGPUs: true in %s", api.EnvMemory, r.Config.Path)
		}
		return undo, withoutRequest(spec, c)
	}
	return r.withRequest(ctx, cr, spec, c, requested)
}

func (r *Runtime) warnOfAdmin(call Call, spec *rspec.Spec) {
	if !oci.AdministersNode(spec) || r.isExempt(call, oci.ContainerOf(call.ID, spec)) {
		return
	}
	_ = warn(r.Stderr, call, fmt.Sprintf("container %s has CAP_SYS_ADMIN: it can replace its limits and, on nodes with cgroup v1, open every GPU (docs/SECURITY.md, \"What the limiter doesn't hold\")",
		oci.ShortID(call.ID)), time.Now())
}

// WithoutAgent is what nothing checks on a host without an agent.
const WithoutAgent = "limits of memory and compute time hold without it; nothing finds processes that bypass the limiter or exceed their share, " +
	"releases shares of containers that are gone before the next one starts, or exports metrics"

// noteOfAgent is for the engine's log: standard error is the container's too.
func (r *Runtime) noteOfAgent(call Call) {
	if call.Log == "" || call.Log == "/dev/stderr" || agentRuns(r.Config.StateDir) {
		return
	}
	_ = warn(r.Stderr, call, fmt.Sprintf("container %s: gpuslice-agent does not run: %s", oci.ShortID(call.ID), WithoutAgent), time.Now())
}

// lockReads is how many times agentRuns reads /proc/locks, which can lack a lock.
const lockReads = 10

// agentRuns reports whether a process holds the agent's lock. To try the lock could stop an agent that starts.
func agentRuns(stateDir string) bool {
	var s unix.Stat_t
	if unix.Stat(filepath.Join(stateDir, "agent.lock"), &s) != nil {
		return false
	}
	for range lockReads {
		locks, err := rawfile.Read("/proc/locks")
		if err != nil {
			return false
		}
		if _, held := procfs.LockedBy(string(locks), s.Dev, s.Ino); held {
			return true
		}
	}
	return false
}

// hasGPUsFlag reports whether docker run had --gpus: only then docker adds NVIDIA's hook. An image's variable
// NVIDIA_VISIBLE_DEVICES adds none. Podman can have that hook for every container.
func hasGPUsFlag(spec *rspec.Spec, c oci.Container) bool {
	return callsNvidia(spec) && oci.RequestsGPU(c) && spec.Annotations["io.container.manager"] != "libpod"
}

// withoutRequest removes a container's GPUs, or refuses the container.
func withoutRequest(spec *rspec.Spec, c oci.Container) error {
	if reason, holds := holdsGPU(c); holds {
		return fmt.Errorf("the container requests no GPU share, but %s, which has no limits: request a share instead (-e GPUSLICE_MEMORY=8GiB)", reason)
	}
	return oci.Apply(spec, oci.Void(c))
}

// holdsGPU finds a GPU that no edit removes. A privileged container always has the device nodes, so
// only the driver's libraries count.
func holdsGPU(c oci.Container) (reason string, holds bool) {
	if reason, holds = oci.HasGPU(c); !holds && c.Privileged {
		return oci.MountsDriver(c)
	}
	return reason, holds
}

func (r *Runtime) limitedByNRI(ctx context.Context, c oci.Container) (bool, error) {
	return oci.Limited(ctx, r.Config.StateDir, c.ID, c.Mounts, ledger.OwnerNRI)
}

func (r *Runtime) mountsLimits(c oci.Container) bool {
	return oci.MountsFiles(c.Mounts, ledger.DirOf(r.Config.StateDir, c.ID))
}

func (r *Runtime) withRequest(ctx context.Context, cr *creation, spec *rspec.Spec, c oci.Container, requested *request.Request) (func() error, error) {
	undo := func() error { return nil }
	if err := ledger.ValidateContainerID(c.ID); err != nil {
		return undo, err
	}
	gpus, err := r.GPUs(ctx)
	if err != nil {
		return undo, oci.AdviseRoot(err)
	}
	limiter, err := r.Limiter()
	if err != nil {
		return undo, oci.AdviseRoot(err)
	}
	ledger, err := ledger.Open(r.Config.StateDir, ledger.WithRecovery(oci.RecoverClaim))
	if err != nil {
		return undo, oci.AdviseRoot(err)
	}
	defer ledger.Close()

	res := reservation{
		runtime: r, creation: cr, gpus: gpus, request: requested,
		settings: r.settings(cr, limiter, gpus),
		releaser: orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()},
	}
	res.container = c
	root := oci.RootPath(cr.call.Bundle, spec)
	if root == "" {
		return undo, errors.New("the config has no root file system")
	}
	if res.container.Rootfs, err = oci.RootfsFacts(root, c.Env); err != nil {
		return undo, err
	}
	if cr.process != "" {
		res.container.Rootfs.Musl = false // a program of musl can't load the host's driver, which needs glibc
	}
	res.container.Dir = ledger.Dir(c.ID)
	res.container.NoLimiter = r.Config.AllowControlSwitch && oci.RequestsNoLimiter(c)
	if err := res.reserve(ctx, spec); err != nil {
		return undo, err
	}
	r.noteOfAgent(cr.call)
	return func() error { return r.drop(c.ID, res.record.Nonce) }, nil
}

func (r *Runtime) settings(cr *creation, limiter Limiter, gpus GPUs) oci.Settings {
	s := oci.Settings{
		Injection:              oci.Injection(r.Config.DeviceInjection),
		LibraryPath:            limiter.Library,
		PreloadPath:            limiter.Preload,
		LimiterMode:            oci.LimiterMode(r.Config.LimiterMode),
		Stubs:                  limiter.Fronts,
		DefaultRuntimeIsNvidia: isNvidia(cr.lowLevel) || cr.nvidia != "",
		NvidiaAdvice:           cr.advice(),
		Graphics:               r.Config.Graphics,
		CorePolicy:             oci.CorePolicy(r.Config.CorePolicy),
		Oversubscription:       gpus.Oversubscription,
		ContextMiB:             gpus.ContextMiB,
		Unmeasured:             true,
		Memory:                 oci.MemoryEnforcement(r.Config.MemoryEnforcement),
		RequireNative:          r.Config.RequireNative,
		Native:                 r.native(),
	}
	if s.Memory == oci.MemoryAuto {
		s.NoNative = r.NoNative()
	}
	if cr.process != "" {
		s.Host, s.LimiterMode = true, oci.LimiterPreload // the host's libraries stay as they are
	}
	if r.Config.ContextMemoryMiB >= 0 {
		s.ContextMiB = map[string]int64{}
		for uuid := range gpus.Capacity {
			s.ContextMiB[uuid] = int64(r.Config.ContextMemoryMiB)
		}
	}
	return s
}

// advice is for a node without a CDI spec of the GPUs.
func (cr *creation) advice() string {
	const spec = "run gpuslice cdi generate --driver, or nvidia-ctk cdi generate"
	if cr.lowLevel == podmansRuntime {
		return "a podman hook can't select NVIDIA's runtime: " + spec
	}
	return fmt.Sprintf("the low-level runtime %s does not inject GPUs, and nvidia-container-runtime is not installed or can't replace it: %s, or set nvidia-container-runtime first in runtimes of the config", cr.lowLevel, spec)
}

// drop releases the claim of a container that was not created.
func (r *Runtime) drop(id, nonce string) error {
	return r.withReleaser(context.Background(), func(ctx context.Context, releaser orphans.Releaser) error {
		return releaser.Drop(ctx, id, nonce)
	})
}

func (r *Runtime) withReleaser(ctx context.Context, do func(context.Context, orphans.Releaser) error) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	ledger, err := ledger.Open(r.Config.StateDir)
	if err != nil {
		return err
	}
	defer ledger.Close()
	return do(ctx, orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()})
}
