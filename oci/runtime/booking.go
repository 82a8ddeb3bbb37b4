package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/claimed"
	"github.com/gpuslice/gpuslice/oci/request"
)

// booking is how one container gets its share.
type booking struct {
	runtime   *Runtime
	order     *order
	container oci.Container
	request   *request.Request
	gpus      GPUs
	settings  oci.Settings
	releaser  orphans.Releaser
	record    orphans.Record
}

// book chooses GPUs, books them and edits the spec. Between choice and claim others may
// be faster; then it chooses again, as long as there is room. Each time somebody else
// got a share, so that this comes to an end.
func (b *booking) book(ctx context.Context, spec *rspec.Spec) error {
	var err error
	b.record, err = newRecord(b.releaser.Judge.Proc, *b.order)
	if err != nil {
		return err
	}
	registry, err := oci.NewSavedRegistry(oci.RegistryConfig{Dirs: b.runtime.Config.CDISpecDirs}, filepath.Join(b.runtime.Config.StateDir, "cdi.json"))
	if err != nil {
		return err
	}
	config := b.runtime.Config
	config.Indices = b.gpus.Indices
	for {
		booked, err := b.booked(ctx)
		if err != nil {
			return err
		}
		shares, err := b.pick(booked, config)
		if err != nil {
			return err
		}
		edits, err := oci.Edits(shares, b.settings, b.container, registry)
		if err != nil {
			return err
		}
		if err := oci.CheckVolumes(b.container.Mounts, edits.Edits); err != nil {
			return err
		}
		b.choose(edits.Injection)
		err = b.claim(ctx, shares, edits.Enforcement)
		if errors.Is(err, grant.ErrOverbooked) {
			continue
		}
		if err != nil {
			return err
		}
		b.runtime.at("claimed")
		if err := b.edit(spec, edits); err != nil {
			return errors.Join(err, b.runtime.giveUp(b.container.ID, b.record.Nonce))
		}
		b.order.lowLevel = b.record.Runtime
		return nil
	}
}

// pick picks the GPUs, of those that are not cordoned.
func (b *booking) pick(booked map[string]grant.Usage, config request.Config) ([]grant.Share, error) {
	cordoned, err := grant.Cordoned(config.StateDir)
	if err != nil {
		return nil, err
	}
	if len(cordoned) == 0 {
		return request.Choose(b.request, b.gpus.Capacity, booked, config)
	}
	left := maps.Clone(b.gpus.Capacity)
	maps.DeleteFunc(left, func(uuid string, c grant.GPU) bool { return grant.IsCordoned(cordoned, uuid, c.Parent) })
	shares, err := request.Choose(b.request, left, booked, config)
	if err != nil {
		return nil, fmt.Errorf("%w; cordoned, and given to no new container: %s (gpuslice uncordon)", err, strings.Join(cordoned, ", "))
	}
	return shares, nil
}

// choose says which low-level runtime makes the container: NVIDIA's where nobody else
// injects the GPUs.
func (b *booking) choose(way oci.Injection) {
	b.record.Runtime = b.order.lowLevel
	if way == oci.InjectEnvvar && !isNvidia(b.order.lowLevel) {
		b.record.Runtime = b.order.nvidia
	}
}

// booked is what is booked of the GPUs once what is gone was given back.
func (b *booking) booked(ctx context.Context) (map[string]ledger.Usage, error) {
	for {
		now, err := b.releaser.Ledger.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		changed, err := b.releaser.Sweep(ctx, now)
		if err != nil {
			return nil, err
		}
		b.runtime.at("swept")
		if changed {
			continue
		}
		for _, e := range now.Entries {
			if e.ContainerID != b.container.ID || e.State == ledger.StateReleased {
				continue
			}
			if changed, err = b.replace(ctx); err != nil {
				return nil, err
			}
			if !changed {
				return nil, b.taken(e)
			}
		}
		if !changed {
			return now.GPUs, nil
		}
	}
}

// replace gives back the claim of an earlier creation of podman's container, of which
// nothing is there: one that failed before the low-level runtime knew of it. podman holds
// a lock on a container that it makes, so that the earlier creation is over, even though
// podman lives.
func (b *booking) replace(ctx context.Context) (bool, error) {
	dir := b.releaser.Ledger.Dir(b.container.ID)
	old, err := orphans.Read(dir)
	if err != nil || b.order.lowLevel != podmansRuntime || old.Runtime != podmansRuntime || old.Bundle != b.record.Bundle ||
		b.releaser.Judge.Alive(dir, true) {
		return false, nil // it is told who has it
	}
	return true, b.releaser.Release(ctx, b.container.ID, old.Nonce, true)
}

// taken says that a live container of the same id has a claim.
func (b *booking) taken(e ledger.Entry) error {
	where := ""
	if r, err := orphans.Read(b.releaser.Ledger.Dir(e.ContainerID)); err == nil {
		where = fmt.Sprintf(" (bundle %s)", r.Bundle)
	}
	return fmt.Errorf("a container with the id %s has a share of a GPU already%s: remove it, or choose another id", e.ContainerID, where)
}

// claim books the shares.
func (b *booking) claim(ctx context.Context, shares []grant.Share, how oci.Enforcement) error {
	claim := ledger.Claim{
		ContainerID:  b.container.ID,
		Owner:        ledger.OwnerRuntime,
		Container:    nameOf(b.container),
		Shares:       shares,
		HighPriority: b.request.HighPriority,
		Mode:         string(how),
	}
	ours := false
	_, err := b.releaser.Ledger.Claim(ctx, claim, b.gpus.Capacity, func(dir string) error {
		ours = true
		if err := vgpufs.Mount(dir); err != nil {
			return err
		}
		return errors.Join(
			oci.Populate(dir, claim, b.settings),
			oci.PopulatePreload(dir, b.container.Rootfs),
			b.record.Write(dir),
		)
	})
	if err == nil && !ours { // the same shares under the same id, by somebody else a moment ago
		return fmt.Errorf("a container with the id %s is being made: choose another id", b.container.ID)
	}
	return err
}

// edit puts the share into the container's spec.
func (b *booking) edit(spec *rspec.Spec, result oci.Result) error {
	if err := oci.Apply(spec, result.Edits); err != nil {
		return err
	}
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	spec.Annotations[enforcementAnnotation] = string(result.Enforcement)
	if spec.Hooks == nil {
		spec.Hooks = &rspec.Hooks{}
	}
	timeout := hookTimeoutSeconds
	spec.Hooks.Poststop = append(spec.Hooks.Poststop, rspec.Hook{
		Path:    b.runtime.Self,
		Args:    b.runtime.hookArgs("poststop", "--claim="+b.record.Nonce),
		Timeout: &timeout,
	})
	return nil
}

// nameAnnotations are where runtimes write the name that people know a container by.
var nameAnnotations = []string{"io.kubernetes.cri.container-name", "nerdctl/name", "io.podman.annotations.container.name"}

// nameOf is the name of a container for people; its id where it has none.
func nameOf(c oci.Container) string {
	for _, key := range nameAnnotations {
		if name := c.Annotations[key]; name != "" && len(name) <= 253 {
			return name
		}
	}
	return c.ID
}

// hookTimeoutSeconds is more than a hook takes, and less than people wait.
const hookTimeoutSeconds = 30

// hookArgs are the arguments of a hook of ours.
func (r *Runtime) hookArgs(stage string, args ...string) []string {
	words := []string{filepath.Base(r.Self), "hook", stage}
	if r.Config.Path != "" && r.Config.Path != request.DefaultPath {
		words = append(words, "--config="+r.Config.Path)
	}
	return append(words, args...)
}
