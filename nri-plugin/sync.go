package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// reconcile compares the ledger with the runtime's list of containers: it removes this plugin's unlisted
// claims, and restores missing ones.
func (p *Plugin) reconcile(ctx context.Context, pods []*api.PodSandbox, ctrs []*api.Container) error {
	podByID := map[string]*api.PodSandbox{}
	for _, pod := range pods {
		podByID[pod.GetId()] = pod
	}
	var live []string
	common := map[string]bool{}
	all := make(map[string]Known, len(ctrs))
	for _, ctr := range ctrs {
		live = append(live, ctr.GetId())
		if id := p.claimOf(ctr); id != ctr.GetId() {
			common[id] = true
		}
		all[ctr.GetId()] = p.knownContainer(podByID[ctr.GetPodSandboxId()], ctr)
	}
	p.known.replace(all)
	// An error of one entry does not stop the others.
	live = slices.AppendSeq(live, maps.Keys(common))
	report, err := p.Ledger.Reconcile(ctx, ledger.OwnerNRI, live, ledger.WithLiveness(p.inUse), ledger.WithMemberLiveness(haveProcesses("/proc")), ledger.ForWholeNode())
	p.unlisted.Store(&report.Unlisted)
	_, orphansErr := p.releaseOrphans(ctx)
	errs := []error{err, orphansErr}
	snapshot, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	reserved := map[string]bool{}
	for _, c := range snapshot.Claims() {
		reserved[c.ContainerID] = true
		for _, m := range c.Members {
			reserved[m.ContainerID] = true
		}
	}
	p.stale.set(snapshot.Claims())
	periodic.Wake(p.wake)
	for _, ctr := range ctrs {
		if reserved[ctr.GetId()] || !p.limitedByUs(ctr) {
			continue
		}
		if err := p.restore(ctx, podByID[ctr.GetPodSandboxId()], ctr); err != nil {
			// In the ledger, so that other programs that reserve on this node refuse too.
			blockErr := p.Ledger.Block(ctx, ctr.GetId(), ledger.OwnerNRI, err.Error())
			errs = append(errs, err, blockErr)
		}
	}
	p.Log.Info("ledger reconciled", "containers", len(ctrs), "claims", len(snapshot.Claims()),
		"removed", len(report.Removed), "unlisted", len(report.Unlisted), "interrupted", len(report.Leftovers), "corrupt", len(report.Corrupt))
	return errors.Join(errs...)
}

// inUse returns whether an unlisted container is alive: its state is unreadable, or it is of another engine.
func (p *Plugin) inUse(dir string) bool {
	if fromOtherEngine(dir) {
		return orphans.NewJudge().Alive(dir, false)
	}
	used, err := limiter.UsageInUse(limiter.UsagePath(dir))
	return used || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// limitedByUs returns whether this plugin set the container's limits: only it can mount the claim's directory.
func (p *Plugin) limitedByUs(ctr *api.Container) bool {
	return oci.MountsFiles(mountsOf(ctr), p.Ledger.Dir(p.claimOf(ctr)))
}

// claimOf returns the ID of the claim with the container's files: a common one if they are mounted.
func (p *Plugin) claimOf(ctr *api.Container) string {
	var cdi []string
	for _, d := range ctr.GetCDIDevices() {
		cdi = append(cdi, d.GetName())
	}
	if names := prepared.Names(cdi); len(names) > 0 {
		if id := ledger.CommonID(names); oci.MountsFiles(mountsOf(ctr), p.Ledger.Dir(id)) {
			return id
		}
	}
	return ctr.GetId()
}

// haveProcesses returns a function that returns whether a container has a process: by the control groups, which no container
// leaves without privileges. It reads them once, with the first question. If it can't, all have one.
func haveProcesses(proc procfs.FS) func(containerID string) bool {
	read := sync.OnceValues(func() (map[string]bool, error) {
		pids, err := proc.All()
		ids := map[string]bool{}
		for _, pid := range pids {
			text, err := rawfile.Read(proc.Path(strconv.Itoa(pid), "cgroup"))
			if err != nil {
				continue // it has ended
			}
			for path := range procfs.CgroupPaths(string(text)) {
				for element := range strings.SplitSeq(path, "/") {
					procfs.ContainerID(element, func(id string) bool { ids[id] = true; return false })
				}
			}
		}
		return ids, err
	})
	return func(containerID string) bool {
		ids, err := read()
		return err != nil || ids[containerID]
	}
}

// restore reserves a running container's shares, also if they do not fit.
func (p *Plugin) restore(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	f := p.localFacts(pod, ctr)
	g, err := p.runningGrant(ctx, f)
	if err != nil {
		return fmt.Errorf("restore the claim of running container %s: %w", ctr.GetId(), err)
	}
	if p.claimOf(ctr) != ctr.GetId() {
		p.useCommonClaim(f, g.ResourceClaims)
	}
	// By its mounts: its namespace's permission and the node's limiter mode can have changed.
	claim := f.claim(g, oci.EnforcementOf(f.container.Mounts, createRuntimeHooks(ctr), f.settings))
	restored, err := p.Ledger.Restore(ctx, claim, f.gpus, func(dir string) error {
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

// runningGrant returns the grant of a running container by its pod's annotations, or by
// gpuapi.AnnotationShares: not by the container's files, because its processes can replace them, and not by
// replicas, because their size can have changed. Signatures are not verified, because the keys can have
// changed.
func (p *Plugin) runningGrant(ctx context.Context, f *facts) (*grant.Grant, error) {
	if claims := prepared.Names(f.container.CDIDevices); len(claims) > 0 {
		return runningClaim(f, claims)
	}
	g, err := grant.FromPod(ctx, f.newest, f.name, p.NodeName, p.Names, nil)
	if err == nil && g != nil {
		return g, nil
	}
	if err == nil {
		err = f.inContainer(errors.New("its grant was removed from the pod"))
	}
	if value, ok := f.container.Annotations[gpuapi.AnnotationShares]; ok {
		shares, sharesErr := grant.DecodeShares(value)
		if sharesErr == nil {
			return &grant.Grant{Container: f.name, Shares: shares}, nil
		}
		err = errors.Join(err, sharesErr)
	}
	mig, migErr := grant.FromMIG(f.newest, f.name, f.container.Annotations, f.gpus, nil)
	if mig != nil {
		return mig, nil
	}
	return nil, errors.Join(err, migErr)
}

// runningClaim returns the grant of a running container with ResourceClaims: by the shares that it was created with,
// because the records can be gone.
func runningClaim(f *facts, claims []string) (*grant.Grant, error) {
	value, ok := f.container.Annotations[gpuapi.AnnotationShares]
	if !ok {
		return nil, f.inContainer(errors.New("it has a ResourceClaim, and no record of its shares"))
	}
	shares, err := grant.DecodeShares(value)
	if err != nil {
		return nil, f.inContainer(err)
	}
	return &grant.Grant{Container: f.name, Shares: shares, Source: grant.SourceResourceClaim, ResourceClaims: claims}, nil
}

// fromOtherEngine returns whether a directory's claim is of a container that this runtime does not list:
// one of docker or podman, which use other namespaces of containerd, or none.
func fromOtherEngine(dir string) bool {
	_, err := orphans.Read(dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// releaseOrphans releases the claims of other engines' containers that are gone, and returns whether
// there were any. The OCI wrapper does it too, but only when such a container starts.
func (p *Plugin) releaseOrphans(ctx context.Context) (bool, error) {
	now, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	released, err := orphans.Releaser{Ledger: p.Ledger, Judge: orphans.NewJudge()}.Sweep(ctx, now)
	if released && err == nil {
		p.Log.Info("orphans of other container engines released")
	}
	return released, err
}

func createRuntimeHooks(ctr *api.Container) (hooks []rspec.Hook) {
	for _, h := range ctr.GetHooks().GetCreateRuntime() {
		hooks = append(hooks, rspec.Hook{Path: h.GetPath(), Args: h.GetArgs()})
	}
	return hooks
}
