package nriplugin

import (
	"context"
	"slices"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

type facts struct {
	pod       grant.Pod // as the runtime reports it
	newest    grant.Pod // with the annotations of its newest grant
	name      string    // of the container
	container oci.Container
	hostPID   bool // as far as the runtime reports namespaces

	scheduled  *grant.Grant // by the newest annotations; nil: none
	claimed    *grant.Grant // by the ResourceClaims that the kubelet prepared; nil: none
	inCommon   bool         // its claim is a common one
	ceiling    int          // of compute time, in percent; 0: none
	ceilingErr error

	isolation    grant.Isolation // the weakest that the pod accepts
	isolationErr error

	gpus         map[string]grant.GPU
	missing      func(uuid string) string // may be nil
	settings     oci.Settings
	devices      oci.DeviceEdits
	unscheduled  UnscheduledPolicy
	highPriority bool
	unreconciled error // why all grants are refused; nil: they are not
}

// gather collects the facts. It reads the kubelet's list of containers if HAMi's annotation requires it.
// An error refuses the container: the grant is not signed, or not readable.
func (p *Plugin) gather(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*facts, error) {
	f := p.localFacts(pod, ctr)
	var err error
	if f.scheduled, err = grant.FromPod(ctx, f.newest, f.name, p.NodeName, p.Names, p.Keys); err != nil {
		return f, err
	}
	if f.claimed, err = p.fromResourceClaims(f); f.claimed != nil {
		p.useCommonClaim(f, f.claimed.ResourceClaims)
	}
	return f, err
}

// useCommonClaim gives a container the files of the claim that it has in common with all containers that have the same
// requests of ResourceClaims.
func (p *Plugin) useCommonClaim(f *facts, resourceClaims []string) {
	f.inCommon, f.container.InCommon = true, true
	id := ledger.CommonID(resourceClaims)
	f.container.Dir = p.Ledger.Dir(id)
	f.container.TurnID = limiter.TurnIDOf(id, "")
}

func (p *Plugin) fromResourceClaims(f *facts) (*grant.Grant, error) {
	if p.Prepared != nil {
		var mounts []prepared.Mount
		for _, m := range f.container.Mounts {
			mounts = append(mounts, prepared.Mount{Source: m.Source, Destination: m.Destination})
		}
		return p.Prepared.Grant(f.pod, f.name, f.container.CDIDevices, mounts)
	}
	if len(prepared.Names(f.container.CDIDevices)) > 0 {
		return nil, f.inContainer(grant.Errorf(prepared.ErrNotPrepared, "it has a ResourceClaim, and this node's agent serves none now (--resource-api): delete the pod"))
	}
	return nil, nil
}

func (p *Plugin) localFacts(pod *api.PodSandbox, ctr *api.Container) *facts {
	f := &facts{
		pod:       grant.Pod{UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName(), Annotations: pod.GetAnnotations()},
		name:      ctr.GetName(),
		container: containerOf(pod, ctr),
		hostPID:   withoutPID(pod.GetLinux().GetNamespaces()) || withoutPID(ctr.GetLinux().GetNamespaces()),
		gpus:      p.GPUs(), missing: p.Missing, settings: p.Settings(), devices: p.Devices, unscheduled: p.Unscheduled,
	}
	f.highPriority = p.highPriority(pod.GetNamespace(), f.container)
	f.container.HighPriority = f.highPriority
	f.newest = f.pod
	if p.Newest != nil {
		f.newest = p.Newest(f.pod)
	}
	f.ceiling, f.ceilingErr = grant.CoreCeiling(f.pod, f.name)
	f.isolation, f.isolationErr = grant.RequestedIsolation(f.pod.Annotations)
	f.container.Dir = p.Ledger.Dir(f.container.ID)
	// Without a nonce, so that a restored container has its own: runtimes of pods make random IDs.
	f.container.TurnID = limiter.TurnIDOf(f.container.ID, "")
	f.container.NoLimiter = requestsOptOut(ctr) && p.allowsOptOut(pod.GetNamespace())
	if reason := p.unreconciled.Load(); reason != nil {
		f.unreconciled = *reason
	}
	return f
}

func containerOf(pod *api.PodSandbox, ctr *api.Container) oci.Container {
	c := oci.Container{
		ID:             ctr.GetId(),
		Env:            ctr.GetEnv(),
		RuntimeHandler: pod.GetRuntimeHandler(),
		Annotations:    ctr.GetAnnotations(),
		Mounts:         mountsOf(ctr),
	}
	for _, d := range ctr.GetLinux().GetDevices() {
		c.Devices = append(c.Devices, d.ToOCI())
	}
	for _, d := range ctr.GetCDIDevices() {
		c.CDIDevices = append(c.CDIDevices, d.GetName())
	}
	c.DeviceRules = deviceRules(ctr.GetLinux().GetResources())
	c.Majors = oci.HostDriverMajorsFor(c)
	c.RequestNames = oci.HostRequestNames()
	c.Privileged = oci.AllowsAllDevices(c.DeviceRules)
	return c
}

// withoutPID returns whether a pod or container with these namespaces has none for processes, but the host's. containerd
// gives the pod none, and its containers the path of the pod's. Without namespaces nothing is known.
func withoutPID(namespaces []*api.LinuxNamespace) bool {
	return len(namespaces) > 0 && !slices.ContainsFunc(namespaces, func(n *api.LinuxNamespace) bool { return n.GetType() == string(rspec.PIDNamespace) })
}

func mountsOf(ctr *api.Container) []rspec.Mount {
	var mounts []rspec.Mount
	for _, m := range ctr.GetMounts() {
		mounts = append(mounts, m.ToOCI(nil))
	}
	return mounts
}

func deviceRules(resources *api.LinuxResources) []rspec.LinuxDeviceCgroup {
	var rules []rspec.LinuxDeviceCgroup
	for _, r := range resources.GetDevices() {
		rules = append(rules, rspec.LinuxDeviceCgroup{
			Allow: r.GetAllow(), Type: r.GetType(), Major: r.GetMajor().Get(), Minor: r.GetMinor().Get(), Access: r.GetAccess(),
		})
	}
	return rules
}

const anyNamespace = "*"

func requestsOptOut(ctr *api.Container) bool {
	return oci.RequestsNoLimiter(oci.Container{Env: ctr.GetEnv()})
}

func (p *Plugin) allowsOptOut(namespace string) bool { return allows(p.OptOutNamespaces, namespace) }

func allows(namespaces []string, namespace string) bool {
	return slices.Contains(namespaces, anyNamespace) || slices.Contains(namespaces, namespace)
}

func (p *Plugin) highPriority(namespace string, c oci.Container) bool {
	return slices.Contains(p.HighPriorityNamespaces, namespace) ||
		allows(p.RequestedPriorityNamespaces, namespace) && oci.RequestsPriority(c)
}

func (p *Plugin) recordOptOut(pod *api.PodSandbox, ctr *api.Container) {
	switch {
	case !requestsOptOut(ctr):
	case p.allowsOptOut(pod.GetNamespace()):
		p.Log.Warn("container runs without limits: it disables its limiter, and its namespace allows that", "variable", gpuapi.EnvDisableControl,
			"pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "total", p.optedOut.Add(1))
	default:
		p.Log.Info("container stays limited: its namespace does not allow it to disable its limiter", "variable", gpuapi.EnvDisableControl,
			"pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "total", p.optOutDenied.Add(1))
	}
}
