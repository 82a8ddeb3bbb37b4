package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

// ModeAnnotation is set on a container that has a GPU: how its limits are
// enforced, for people and for the monitor.
const ModeAnnotation = "gpuslice.io/enforcement"

// create decides about one container and books what it gets. Everything that can
// be refused is refused before anything is booked.
func (p *Plugin) create(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
	if err := p.checkSize(pod, ctr, nil); err != nil {
		return nil, err
	}
	if p.exempt[pod.GetNamespace()] {
		return nil, nil
	}
	adjust, err := p.decide(ctx, pod, ctr)
	if err != nil {
		return nil, err
	}
	p.intents.record(ctr.GetId(), adjust)
	return adjust, nil
}

func (p *Plugin) decide(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
	asked := p.newest(pod)
	if p.Keys != nil {
		if err := grant.Authenticate(asked, ctr.GetName(), p.NodeName, p.Keys); err != nil {
			return nil, err
		}
	}
	g, err := p.granted(ctx, asked, ctr)
	if err != nil {
		return nil, err
	}
	if g == nil {
		return p.withoutGrant(pod, ctr)
	}
	adjust, err := p.withGrant(ctx, pod, ctr, g)
	if errors.Is(err, ledger.ErrSlotTaken) {
		// Another container of the pod has it: this one was added later (an
		// ephemeral container), and gets what any container without a grant gets.
		p.Log.Warn("container goes without a GPU: its slot of the positional grant is taken", "pod", podName(pod), "container", ctr.GetName(), "reason", err)
		return p.withoutGrant(pod, ctr)
	}
	return adjust, err
}

// newest are the facts about a pod, with what was granted to it last.
func (p *Plugin) newest(pod *api.PodSandbox) grant.Pod {
	if p.Newest == nil {
		return podFacts(pod)
	}
	return p.Newest(podFacts(pod))
}

// granted is what a container gets: by its pod's scheduler, by the MIG devices that the
// kubelet gave it or, where the policy says so, by its replicas.
func (p *Plugin) granted(ctx context.Context, pod grant.Pod, ctr *api.Container) (*grant.Grant, error) {
	g, err := grant.FromPod(ctx, pod, ctr.GetName(), p.NodeName, p.Names)
	if err != nil {
		return nil, err
	}
	gpus := p.GPUs()
	mig, err := grant.FromMIG(pod, ctr.GetName(), ctr.GetAnnotations(), gpus, g)
	switch {
	case err != nil:
		return nil, err
	case mig != nil:
		return mig, nil
	case g == nil && p.Unscheduled == UnscheduledShare:
		return grant.FromReplicas(pod, ctr.GetName(), ctr.GetAnnotations(), gpus)
	}
	return g, nil
}

// withGrant answers for a container that has a grant. Its errors name the pod and
// the container, as those of grant.FromPod and of the ledger's Claim do.
func (p *Plugin) withGrant(ctx context.Context, pod *api.PodSandbox, ctr *api.Container, g *grant.Grant) (*api.ContainerAdjustment, error) {
	if why := p.unreconciled.Load(); why != nil {
		return nil, &reasoned{reasonUnreconciled, fmt.Errorf("pod %s container %q: gpuslice gives no grant until it knows what runs on this node: %w", podName(pod), ctr.GetName(), *why)}
	}
	if _, err := grant.CoreCeiling(podFacts(pod), ctr.GetName()); err != nil {
		return nil, err
	}
	gpus := p.GPUs()
	adjust, how, err := p.edit(pod, ctr, g, gpus)
	if err != nil {
		return nil, fmt.Errorf("pod %s container %q: %w", podName(pod), ctr.GetName(), err)
	}
	if err := p.checkSize(pod, ctr, adjust); err != nil {
		return nil, err
	}
	if err := p.book(ctx, p.claim(pod, ctr, g, how), gpus); err != nil {
		return nil, err
	}
	p.noteSwitch(pod, ctr)
	return adjust, nil
}

// book makes the claim. A full state directory is cleared of what containers wrote past
// the end of their usage files, and a full GPU of what docker's containers had that are
// gone; then it is tried once more.
func (p *Plugin) book(ctx context.Context, claim ledger.Claim, gpus map[string]grant.GPU) error {
	claimOnce := func() error {
		_, err := p.Ledger.Claim(ctx, claim, gpus, func(dir string) error { return p.Populate(dir, claim) })
		return err
	}
	err := claimOnce()
	if errors.Is(err, syscall.ENOSPC) {
		p.trim(ctx)
		err = claimOnce()
	}
	if mayBeOthers(err) {
		if swept, sweepErr := p.sweepOthers(ctx); sweepErr != nil {
			p.Log.Warn("claims of other engines' containers not looked through", "error", sweepErr)
		} else if swept {
			err = claimOnce()
		}
	}
	return err
}

// edit translates a grant to an adjustment, and says how its limits are enforced.
func (p *Plugin) edit(pod *api.PodSandbox, ctr *api.Container, g *grant.Grant, gpus map[string]grant.GPU) (*api.ContainerAdjustment, oci.Enforcement, error) {
	if err := grant.CheckGPUs(g.Shares, gpus); err != nil {
		return nil, "", p.because(err, g.Shares, gpus)
	}
	c := facts(pod, ctr)
	if _, ok := c.Annotations[grant.AnnotationShares]; ok {
		return nil, "", fmt.Errorf("it has the annotation %s, which only gpuslice writes: two gpuslice agents are connected to the runtime, or the runtime copies annotations of pods to containers (pod_annotations, container_annotations): stop one agent, or remove that setting", grant.AnnotationShares)
	}
	c.Dir = p.Ledger.Dir(c.ID)
	c.Uncontrolled = p.switchesOff(pod, ctr)
	result, err := oci.Edits(g.Shares, p.Settings(), c, p.Devices)
	if err != nil {
		return nil, "", err
	}
	if err := checkDuplicates(oci.UnsafeDuplicates(c.Env, result.Edits)); err != nil {
		return nil, "", err
	}
	adjust, err := adjustment(result.Edits, result.Replaced)
	if err != nil {
		return nil, "", err
	}
	// Not removed first, as everything else is: NRI keeps annotations in a map, and
	// removes and adds them in whatever order it comes upon them.
	adjust.AddAnnotation(ModeAnnotation, string(result.Enforcement))
	value, err := grant.EncodeShares(g.Shares)
	if err != nil {
		return nil, "", err
	}
	adjust.AddAnnotation(grant.AnnotationShares, value)
	return adjust, result.Enforcement, nil
}

// because adds why the node does not offer a GPU that the shares name.
func (p *Plugin) because(err error, shares []grant.Share, gpus map[string]grant.GPU) error {
	for _, s := range shares {
		if _, offered := gpus[s.UUID]; offered || p.Missing == nil {
			continue
		}
		if reason := p.Missing(s.UUID); reason != "" {
			return fmt.Errorf("%w: %s", err, reason)
		}
	}
	return err
}

// withoutGrant answers for a container that has no grant: it gets no GPU,
// whatever it, its image or another device plugin asks for.
func (p *Plugin) withoutGrant(pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
	c := facts(pod, ctr)
	refuse := func(err error) error {
		return &reasoned{reasonNoGrant, fmt.Errorf("pod %s container %q has no gpuslice grant: %w", podName(pod), ctr.GetName(), err)}
	}
	if reason, holds := oci.HoldsGPU(c); holds {
		return nil, refuse(fmt.Errorf("%s: request a share (nvidia.com/gpu, nvidia.com/gpumem) in its place", reason))
	}
	void := oci.Void(c)
	if void == nil {
		return nil, nil
	}
	if err := checkDuplicates(oci.UnsafeDuplicates(c.Env, void)); err != nil {
		return nil, refuse(err)
	}
	return adjustment(void, oci.Replaced{})
}

// claim is what the ledger writes down.
func (p *Plugin) claim(pod *api.PodSandbox, ctr *api.Container, g *grant.Grant, how oci.Enforcement) ledger.Claim {
	// A container that runs has no bad one: it was refused.
	ceiling, _ := grant.CoreCeiling(podFacts(pod), ctr.GetName())
	return ledger.Claim{
		CoreCeiling:  ceiling,
		HighPriority: slices.Contains(p.HighPriorityNamespaces, pod.GetNamespace()),
		ContainerID:  ctr.GetId(),
		Owner:        ledger.OwnerNRI,
		PodUID:       pod.GetUid(),
		PodNamespace: pod.GetNamespace(),
		PodName:      pod.GetName(),
		Container:    ctr.GetName(),
		Shares:       g.Shares,
		Source:       g.Source,
		Slot:         g.Slot,
		Mode:         string(how),
	}
}

// checkDuplicates refuses what NRI can't edit: of a variable that is named twice
// (an image can do that), the runtime replaces the first and lets the second win.
func checkDuplicates(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("its environment sets %s more than once, so that no one value can be enforced: name it once in the image and the pod", strings.Join(names, ", "))
}
