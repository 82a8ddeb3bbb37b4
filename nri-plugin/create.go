package nriplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/nri/pkg/api"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

func (p *Plugin) create(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
	if err := p.checkSize(pod, ctr, nil); err != nil {
		return nil, err
	}
	if slices.Contains(p.ExemptNamespaces, pod.GetNamespace()) {
		return nil, nil
	}
	f, err := p.gather(ctx, pod, ctr)
	if err != nil {
		return nil, err
	}
	d, err := decide(f)
	if err != nil {
		return nil, err
	}
	if d.claim != nil {
		if err := p.checkSize(pod, ctr, d.adjust); err != nil {
			return nil, err
		}
		err := p.reserve(ctx, *d.claim, f.gpus)
		if errors.Is(err, ledger.ErrPositionTaken) {
			// The container was added later (an ephemeral container): it is one without a grant.
			p.Log.Warn("container gets no GPU: another container has its position in the HAMi annotation", "pod", podName(pod), "container", ctr.GetName(), "reason", err)
			d, err = withoutGrant(f)
		} else if err == nil {
			p.recordOptOut(pod, ctr)
		}
		if err != nil {
			return nil, err
		}
	}
	p.intents.record(ctr.GetId(), d.adjust)
	return d.adjust, nil
}

type decision struct {
	adjust *api.ContainerAdjustment // may be nil
	claim  *ledger.Claim            // to reserve; nil: none
}

// decide returns what a container gets. Its errors refuse the container, and name the pod and the container.
func decide(f *facts) (decision, error) {
	g, err := f.grant()
	if err != nil {
		return decision{}, err
	}
	if g == nil {
		return withoutGrant(f)
	}
	if f.unreconciled != nil {
		return decision{}, &reasoned{reasonUnreconciled, f.inContainer(fmt.Errorf("gpuslice refuses all grants until the ledger is reconciled with the containers on this node: %w", f.unreconciled))}
	}
	if f.ceilingErr != nil {
		return decision{}, f.ceilingErr
	}
	if f.isolationErr != nil {
		return decision{}, f.inContainer(f.isolationErr)
	}
	adjust, mode, err := f.edit(g)
	if err == nil {
		err = f.isolated(g, mode)
	}
	if err != nil {
		return decision{}, f.inContainer(err)
	}
	claim := f.claim(g, mode)
	return decision{adjust, &claim}, nil
}

// withoutGrant gives a container no GPU, whatever it, its image or another device plugin requests.
func withoutGrant(f *facts) (decision, error) {
	if reason, holds := oci.HasGPU(f.container); holds {
		return decision{}, f.noGrant(fmt.Errorf("%s: request a share (nvidia.com/gpu, nvidia.com/gpumem) in its place", reason))
	}
	void := oci.Void(f.container)
	if void == nil {
		return decision{}, nil
	}
	if err := checkDuplicates(oci.UnsafeDuplicates(f.container.Env, void)); err != nil {
		return decision{}, f.noGrant(err)
	}
	adjust, err := adjustment(void, oci.Replaced{})
	return decision{adjust: adjust}, err
}

// grant returns what the scheduler granted, the ResourceClaims' shares, the MIG devices that the kubelet chose or, where
// the policy allows it, the equal share of the replicas; nil: nothing.
func (f *facts) grant() (*grant.Grant, error) {
	mig, err := grant.FromMIG(f.newest, f.name, f.container.Annotations, f.gpus, f.scheduled)
	switch {
	case err != nil:
		return nil, err
	case f.claimed != nil:
		return f.claimed, cmp.Or(f.onlyClaimed(mig), f.notRootOfNode())
	case mig != nil:
		return mig, nil
	case f.scheduled == nil && f.unscheduled == UnscheduledShare:
		return grant.FromReplicas(f.newest, f.name, f.container.Annotations, f.gpus)
	}
	return f.scheduled, nil
}

// onlyClaimed refuses a container that has a ResourceClaim and GPUs by another way: two schedulers chose them.
func (f *facts) onlyClaimed(mig *grant.Grant) error {
	other := ""
	switch _, replicas := f.container.Annotations[gpuapi.AnnotationReplicas]; {
	case f.scheduled != nil:
		other = "a scheduler's grant"
	case mig != nil:
		other = "MIG devices of the device plugin"
	case replicas:
		other = "replicas of the device plugin"
	default:
		return nil
	}
	return f.inContainer(grant.Errorf(grant.ErrMalformed, "it has a ResourceClaim and %s too: request its GPUs in one way", other))
}

// notRootOfNode refuses a container that can open every GPU of its node. No webhook has seen its ResourceClaim. NRI does not
// show capabilities: an admission policy refuses CAP_SYS_ADMIN.
func (f *facts) notRootOfNode() error {
	switch {
	case f.container.Privileged:
		return f.inContainer(grant.Errorf(grant.ErrMalformed, "it has a ResourceClaim and is privileged: it can open every GPU of its node: remove one of them"))
	case f.hostPID:
		return f.inContainer(grant.Errorf(grant.ErrMalformed, "it has a ResourceClaim and the host's PID namespace: it reaches the processes of other containers that have GPUs: remove one of them"))
	}
	return nil
}

func (f *facts) edit(g *grant.Grant) (*api.ContainerAdjustment, oci.Enforcement, error) {
	if err := grant.CheckGPUs(g.Shares, f.gpus); err != nil {
		return nil, "", f.addMissingReason(err, g.Shares)
	}
	if _, ok := f.container.Annotations[gpuapi.AnnotationShares]; ok {
		return nil, "", fmt.Errorf("it has the annotation %s, which only gpuslice writes: two gpuslice agents are connected to the runtime, or the runtime copies annotations of pods to containers (pod_annotations, container_annotations): stop one agent, or remove that setting", gpuapi.AnnotationShares)
	}
	result, err := oci.Edits(g.Shares, f.settings, f.container, f.devices)
	if err != nil {
		return nil, "", err
	}
	if err := checkDuplicates(oci.UnsafeDuplicates(f.container.Env, result.Edits)); err != nil {
		return nil, "", err
	}
	adjust, err := adjustment(result.Edits, result.Replaced)
	if err != nil {
		return nil, "", err
	}
	// Not removed first, as everything else is: NRI keeps annotations in a map, and removes and adds
	// them in random order.
	adjust.AddAnnotation(gpuapi.AnnotationEnforcement, string(result.Enforcement))
	value, err := grant.EncodeShares(g.Shares)
	if err != nil {
		return nil, "", err
	}
	adjust.AddAnnotation(gpuapi.AnnotationShares, value)
	return adjust, result.Enforcement, nil
}

func (f *facts) isolated(g *grant.Grant, mode oci.Enforcement) error {
	err := f.isolation.Check(g.Shares, f.gpus, mode.Isolation())
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: delete the pod, so that a scheduler that reads the annotation places it", err)
}

func (f *facts) addMissingReason(err error, shares []grant.Share) error {
	for _, s := range shares {
		if _, offered := f.gpus[s.UUID]; offered || f.missing == nil {
			continue
		}
		if reason := f.missing(s.UUID); reason != "" {
			return fmt.Errorf("%w: %s", err, reason)
		}
	}
	return err
}

func (f *facts) claim(g *grant.Grant, mode oci.Enforcement) ledger.Claim {
	claim := ledger.Claim{
		CoreCeiling:  f.ceiling,
		HighPriority: f.highPriority,
		CorePolicy:   f.settings.LimiterPolicy(),
		TurnID:       f.container.TurnID,
		ContainerID:  f.container.ID,
		Owner:        ledger.OwnerNRI,
		PodUID:       f.pod.UID,
		PodNamespace: f.pod.Namespace,
		PodName:      f.pod.Name,
		Container:    f.name,
		Shares:       g.Shares,
		Source:       g.Source,
		Position:     g.Position,
		Mode:         string(mode),

		ResourceClaims: g.ResourceClaims,
	}
	if f.inCommon {
		return claim.Common()
	}
	return claim
}

// reserve makes the claim. If the state directory or the GPU is full, it truncates usage files or releases
// orphans, and tries again.
func (p *Plugin) reserve(ctx context.Context, claim ledger.Claim, gpus map[string]grant.GPU) error {
	joined := false
	try := func() error {
		dir, err := p.Ledger.Claim(ctx, claim, gpus, func(dir string) error { return p.Populate(dir, claim) })
		if err == nil && claim.IsCommon() {
			joined = true
			err = oci.AddLibraries(dir, p.Settings()) // of another release than those of the first container
		}
		return err
	}
	err := try()
	if errors.Is(err, syscall.ENOSPC) {
		p.trim(ctx)
		err = try()
	}
	if errors.Is(err, grant.ErrOverbooked) || errors.Is(err, ledger.ErrCorrupt) {
		if released, releaseErr := p.releaseOrphans(ctx); releaseErr != nil {
			p.Log.Warn("failed to check for orphans", "error", releaseErr)
		} else if released {
			err = try()
		}
	}
	if err != nil && joined {
		for _, m := range claim.Members {
			p.endClaim(ctx, m.ContainerID, remove)
		}
	}
	return err
}

// checkDuplicates refuses a variable that is set twice: NRI replaces the first, and the second is in effect.
func checkDuplicates(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("its environment sets %s more than once, so no single value can be enforced: set it once in the image and the pod", strings.Join(names, ", "))
}

func (f *facts) inContainer(err error) error {
	return fmt.Errorf("pod %s/%s container %q: %w", f.pod.Namespace, f.pod.Name, f.name, err)
}

func (f *facts) noGrant(err error) error {
	return &reasoned{reasonNoGrant, fmt.Errorf("pod %s/%s container %q has no gpuslice grant: %w", f.pod.Namespace, f.pod.Name, f.name, err)}
}
