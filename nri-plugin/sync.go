package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// reconcile makes the ledger say what is true: the runtime's list of created and
// running containers. Claims of ours that are not in the list are given back
// (their Stop and Remove were sent while nobody listened, or never will be), and
// a listed container that was limited by us but has no claim gets it back.
//
// The runtime creates no container while it synchronises, so the list and the
// ledger are of the same moment.
func (p *Plugin) reconcile(ctx context.Context, pods []*api.PodSandbox, ctrs []*api.Container) error {
	podByID := map[string]*api.PodSandbox{}
	for _, pod := range pods {
		podByID[pod.GetId()] = pod
	}
	var live []string
	all := make(map[string]Told, len(ctrs))
	for _, ctr := range ctrs {
		live = append(live, ctr.GetId())
		all[ctr.GetId()] = p.toldOf(podByID[ctr.GetPodSandboxId()], ctr)
	}
	p.told.replace(all)
	// An entry that can't be swept keeps no other from being swept or restored.
	report, err := p.Ledger.Reconcile(ctx, ledger.OwnerNRI, live, ledger.WithLiveness(p.inUse), ledger.ForWholeNode())
	p.unlisted.Store(&report.Unlisted)
	_, sweepErr := p.sweepOthers(ctx)
	errs := []error{err, sweepErr}
	snapshot, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	booked := map[string]bool{}
	for _, c := range snapshot.Claims() {
		booked[c.ContainerID] = true
	}
	p.behind.set(snapshot.Claims())
	poke(p.wake)
	for _, ctr := range ctrs {
		if booked[ctr.GetId()] || !p.limitedByUs(ctr) {
			continue
		}
		if err := p.restore(ctx, podByID[ctr.GetPodSandboxId()], ctr); err != nil {
			// Written down, so that others who book on this node refuse too.
			blockErr := p.Ledger.Block(ctx, ctr.GetId(), ledger.OwnerNRI, err.Error())
			errs = append(errs, err, blockErr)
		}
	}
	p.Log.Info("ledger reconciled", "containers", len(ctrs), "claims", len(snapshot.Claims()),
		"removed", len(report.Removed), "unlisted", len(report.Unlisted), "leftovers", len(report.Leftovers), "corrupt", len(report.Corrupt))
	return errors.Join(errs...)
}

// inUse says whether a process of a container that the runtime does not list has a
// GPU open. The runtime leaves out a container whose state it can't find out; and other
// engines' it doesn't know, which are judged as those who made them do.
func (p *Plugin) inUse(dir string) bool {
	if others(dir) {
		return orphans.NewJudge().Alive(dir, false)
	}
	used, err := limiter.UsageInUse(limiter.UsagePath(dir))
	return used || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// limitedByUs tells whether a container was created with our edits, by the one
// mount that its pod can't have made itself: the directory of its own claim.
func (p *Plugin) limitedByUs(ctr *api.Container) bool {
	var mounts []rspec.Mount
	for _, m := range ctr.GetMounts() {
		mounts = append(mounts, m.ToOCI(nil))
	}
	return oci.MountsFiles(mounts, p.Ledger.Dir(ctr.GetId()))
}

// restore books again what a running container holds. It can't be refused: the
// container is there.
func (p *Plugin) restore(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	g, err := p.held(ctx, pod, ctr)
	if err != nil {
		return fmt.Errorf("restore the claim of running container %s: %w", ctr.GetId(), err)
	}
	claim := p.claim(pod, ctr, g, p.modeOf(ctr))
	restored, err := p.Ledger.Restore(ctx, claim, p.GPUs(), func(dir string) error {
		if err := oci.NoteRestored(dir); err != nil {
			return err
		}
		return p.Populate(dir, claim)
	})
	if err != nil {
		return fmt.Errorf("restore the claim of running container %s: %w", ctr.GetId(), err)
	}
	p.Log.Warn("claim of a running container restored", "pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "overbooked", restored.Overbooked)
	return nil
}

// held is what a running container holds: by the annotations that it was created by
// or, if those can't be read any more, by grant.AnnotationShares on the container. Both are
// in the runtime's record. The files in the container are not used: its processes can replace
// them.
// Signatures are not looked at: the container is there, whatever the keys have become
// since it was created, and what it holds must not be given away. Nor are its replicas:
// what they are worth may have changed. The container's MIG devices are used, for one that an
// earlier version created: their size can't change.
func (p *Plugin) held(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*grant.Grant, error) {
	asked := p.newest(pod)
	g, err := grant.FromPod(ctx, asked, ctr.GetName(), p.NodeName, p.Names)
	if err == nil && g != nil {
		return g, nil
	}
	if err == nil {
		err = fmt.Errorf("pod %s container %q has no grant any more", podName(pod), ctr.GetName())
	}
	if value, ok := ctr.GetAnnotations()[grant.AnnotationShares]; ok {
		shares, sharesErr := grant.DecodeShares(value)
		if sharesErr == nil {
			return &grant.Grant{Container: ctr.GetName(), Shares: shares}, nil
		}
		err = errors.Join(err, sharesErr)
	}
	mig, migErr := grant.FromMIG(asked, ctr.GetName(), ctr.GetAnnotations(), p.GPUs(), nil)
	if mig != nil {
		return mig, nil
	}
	return nil, errors.Join(err, migErr)
}
