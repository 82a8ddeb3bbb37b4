package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
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
	for _, ctr := range ctrs {
		live = append(live, ctr.GetId())
	}
	report, err := p.Ledger.Reconcile(ctx, grant.OwnerNRI, live)
	if err != nil {
		return err
	}
	snapshot, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		return err
	}
	booked := map[string]bool{}
	for _, c := range snapshot.Claims() {
		booked[c.ContainerID] = true
	}
	var errs []error
	for _, ctr := range ctrs {
		if booked[ctr.GetId()] || !p.limitedByUs(ctr) {
			continue
		}
		if err := p.restore(ctx, podByID[ctr.GetPodSandboxId()], ctr); err != nil {
			errs = append(errs, err)
		}
	}
	p.Log.Info("ledger reconciled", "containers", len(ctrs), "claims", len(snapshot.Claims()),
		"removed", len(report.Removed), "leftovers", len(report.Leftovers), "corrupt", len(report.Corrupt))
	return errors.Join(errs...)
}

// limitedByUs tells whether a container was created with our edits, by the one
// mount that its pod can't have made itself: the limits file out of our folder.
func (p *Plugin) limitedByUs(ctr *api.Container) bool {
	for _, m := range ctr.GetMounts() {
		if m.GetDestination() == limiter.ContainerLimitsPath &&
			filepath.Dir(m.GetSource()) == p.Ledger.Folder(ctr.GetId()) {
			return true
		}
	}
	return false
}

// restore books again what a running container holds, from the same annotations
// that it was created by. It can't be refused: the container is there.
func (p *Plugin) restore(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	if pod == nil {
		return fmt.Errorf("container %s holds a card, but the runtime lists no pod of it", ctr.GetId())
	}
	g, err := grant.FromPod(ctx, podFacts(pod), ctr.GetName(), p.NodeName, p.Names)
	if err != nil {
		return fmt.Errorf("restore the claim of a running container: %w", err)
	}
	if g == nil {
		return fmt.Errorf("restore the claim of a running container: pod %s container %q has no grant any more", podName(pod), ctr.GetName())
	}
	restored, err := p.Ledger.Restore(ctx, p.claim(pod, ctr, g), p.Cards(), func(dir string) error {
		return p.Populate(dir, g.Shares)
	})
	if err != nil {
		return fmt.Errorf("restore the claim of a running container: %w", err)
	}
	p.Log.Warn("claim of a running container restored", "pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "overbooked", restored.Overbooked)
	return nil
}
