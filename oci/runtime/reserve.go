package ociruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
)

type reservation struct {
	runtime   *Runtime
	creation  *creation
	container oci.Container
	request   *request.Request
	gpus      GPUs
	settings  oci.Settings
	releaser  orphans.Releaser
	record    orphans.Record
}

// reserve chooses GPUs, claims shares and edits the spec. It retries if another container claims the
// capacity first, which ends because capacity is finite.
func (r *reservation) reserve(ctx context.Context, spec *rspec.Spec) error {
	var err error
	r.record, err = newRecord(r.releaser.Judge.Proc, *r.creation)
	if err != nil {
		return err
	}
	r.container.TurnID = limiter.TurnIDOf(r.container.ID, r.record.Nonce)
	config := r.runtime.Config
	registry, err := oci.NewSavedRegistry(oci.RegistryConfig{Dirs: config.CDISpecDirs}, filepath.Join(config.StateDir, "cdi.json"))
	if err != nil {
		return err
	}
	config.Indices = r.gpus.Indices
	for {
		usage, err := r.usage(ctx)
		if err != nil {
			return err
		}
		shares, err := r.chooseGPUs(usage, config)
		if err != nil {
			return err
		}
		edits, err := oci.Edits(shares, r.settings, r.container, registry)
		if err != nil {
			return err
		}
		if err := oci.CheckVolumes(r.container.Mounts, edits.Edits); err != nil {
			return err
		}
		r.chooseRuntime(edits.Injection)
		err = r.claim(ctx, shares, edits.Enforcement)
		if errors.Is(err, grant.ErrOverbooked) {
			continue
		}
		if err != nil {
			return err
		}
		r.runtime.at("claimed")
		if err := r.edit(spec, edits); err != nil {
			return errors.Join(err, r.runtime.drop(r.container.ID, r.record.Nonce))
		}
		r.creation.lowLevel = r.record.Runtime
		return nil
	}
}

func (r *reservation) chooseGPUs(usage map[string]ledger.Usage, config request.Config) (shares []grant.Share, err error) {
	if r.gpus.None != "" {
		return nil, grant.Errorf(grant.ErrUnknownGPU, "this node has no GPU to share: %s", r.gpus.None)
	}
	if config.Cordoned, err = ledger.Cordoned(config.StateDir); err != nil {
		return nil, err
	}
	return request.Choose(r.request, r.gpus.Capacity, usage, config)
}

// chooseRuntime selects NVIDIA's runtime if nothing else injects the GPUs.
func (r *reservation) chooseRuntime(injection oci.Injection) {
	r.record.Runtime = r.creation.lowLevel
	if injection == oci.InjectEnvvar && !isNvidia(r.creation.lowLevel) {
		r.record.Runtime = r.creation.nvidia
	}
}

// usage releases orphans and returns the usage of the GPUs.
func (r *reservation) usage(ctx context.Context) (map[string]ledger.Usage, error) {
	for {
		now, err := r.releaser.Ledger.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		changed, err := r.releaser.Sweep(ctx, now)
		if err != nil {
			return nil, err
		}
		r.runtime.at("swept")
		if changed {
			continue
		}
		for _, e := range now.Entries {
			if e.ContainerID != r.container.ID || e.State == ledger.StateReleased {
				continue
			}
			if changed, err = r.releaseFailed(ctx); err != nil {
				return nil, err
			}
			if !changed {
				return nil, r.duplicate(e)
			}
		}
		if !changed {
			return now.GPUs, nil
		}
	}
}

// releaseFailed releases the claim of a creation by podman that failed before the low-level runtime
// was called. podman locks a container during its creation, so the earlier one has ended.
func (r *reservation) releaseFailed(ctx context.Context) (bool, error) {
	dir := r.releaser.Ledger.Dir(r.container.ID)
	old, err := orphans.Read(dir)
	if err != nil || r.creation.lowLevel != podmansRuntime || old.Runtime != podmansRuntime || old.Bundle != r.record.Bundle ||
		r.releaser.Judge.Alive(dir, true) {
		return false, nil // duplicate returns the error
	}
	return true, r.releaser.Release(ctx, r.container.ID, old.Nonce, true)
}

// duplicate is the error for a container ID with a claim.
func (r *reservation) duplicate(e ledger.Entry) error {
	where := ""
	if record, err := orphans.Read(r.releaser.Ledger.Dir(e.ContainerID)); err == nil {
		where = fmt.Sprintf(" (bundle %s)", record.Bundle)
	}
	return fmt.Errorf("a container with the ID %s already has a GPU share%s: remove it, or use another ID", e.ContainerID, where)
}

func (r *reservation) claim(ctx context.Context, shares []grant.Share, enforcement oci.Enforcement) error {
	claim := ledger.Claim{
		ContainerID:  r.container.ID,
		Owner:        ledger.OwnerRuntime,
		Container:    cmp.Or(r.creation.process, nameOf(r.container, r.record.Bundle)),
		Shares:       shares,
		HighPriority: r.request.HighPriority,
		CorePolicy:   r.settings.LimiterPolicy(),
		TurnID:       r.container.TurnID,
		Mode:         string(enforcement),
		Process:      r.creation.process != "",
	}
	created := false
	_, err := r.releaser.Ledger.Claim(ctx, claim, r.gpus.Capacity, func(dir string) error {
		created = true
		if err := errors.Join(vgpufs.MountTurns(r.runtime.Config.StateDir), vgpufs.Mount(dir)); err != nil {
			return err
		}
		return errors.Join(
			oci.Populate(dir, claim, r.settings),
			oci.PopulatePreload(dir, r.container.Rootfs),
			r.record.Write(dir),
		)
	})
	if err == nil && !created { // another process has claimed the same shares for the same ID
		return fmt.Errorf("a container with the ID %s is being created: use another ID", r.container.ID)
	}
	return err
}

func (r *reservation) edit(spec *rspec.Spec, result oci.Result) error {
	if err := oci.Apply(spec, result.Edits); err != nil {
		return err
	}
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	spec.Annotations[api.AnnotationEnforcement] = string(result.Enforcement)
	if spec.Hooks == nil {
		spec.Hooks = &rspec.Hooks{}
	}
	timeout := hookTimeoutSeconds
	spec.Hooks.Poststop = append(spec.Hooks.Poststop, rspec.Hook{
		Path:    r.runtime.Self,
		Args:    r.runtime.hookArgs("poststop", "--claim="+r.record.Nonce),
		Timeout: &timeout,
	})
	return nil
}

const hookTimeoutSeconds = 30

func (r *Runtime) hookArgs(stage string, args ...string) []string {
	words := []string{filepath.Base(r.Self), "hook", stage}
	if r.Config.Path != "" && r.Config.Path != api.RuntimeConfig {
		words = append(words, "--config="+r.Config.Path)
	}
	return append(words, args...)
}

// podmanTimeout limits a creation by podman. As a service, podman lives on after a failed creation
// and does not report it.
const podmanTimeout = 2 * time.Minute

func defaultRoots() []string {
	roots := []string{"/run/runc", "/run/crun"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		roots = append(roots, filepath.Join(dir, "runc"), filepath.Join(dir, "crun"))
	}
	return roots
}

func newRecord(proc orphans.Procfs, c creation) (orphans.Record, error) {
	r, err := orphans.NewRecord(proc, c.creator)
	if c.process != "" {
		return r, err // no low-level runtime has a state of it
	}
	r.Runtime, r.Roots = c.lowLevel, defaultRoots()
	if c.call.Root != "" {
		root, rootErr := filepath.Abs(c.call.Root)
		r.Roots, err = []string{root}, errors.Join(err, rootErr)
	}
	bundle, bundleErr := filepath.Abs(c.call.Bundle)
	r.Bundle = bundle
	if c.lowLevel == podmansRuntime {
		err = errors.Join(err, r.BoundCreator(podmanTimeout))
	}
	return r, errors.Join(err, bundleErr)
}
