// Package nriplugin gives containers their GPUs by NRI: for each new container it returns changes of the OCI
// spec, nothing, or an error that refuses the container. The agent runs it.
//
// NRI fails open: a request that is lost or late creates the container without changes. docs/ARCHITECTURE.md
// ("Fail closed") describes what the plugin does against that.
package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

// Config is the plugin's input. Fields are required unless marked optional. The functions must not block:
// the runtime waits for them.
type Config struct {
	NodeName string
	Ledger   *ledger.Ledger
	GPUs     func() map[string]grant.GPU
	// Missing returns why the node does not offer a GPU, or ""; optional.
	Missing func(uuid string) string
	// Connected is called with each new connection, before the runtime's first request; optional.
	Connected func(conn syscall.Conn)
	Populate  func(dir string, claim ledger.Claim) error
	// HighPriorityNamespaces have containers that take precedence on a GPU; optional.
	HighPriorityNamespaces []string
	// RequestedPriorityNamespaces have containers that may request the same by CUDA_TASK_PRIORITY=0; optional. "*": all.
	RequestedPriorityNamespaces []string
	Settings                    func() oci.Settings
	Devices                     oci.DeviceEdits
	// Names returns the order of a pod's containers, for HAMi's annotation with several positions; optional.
	Names grant.ContainerNames
	// Keys verify grants when a container is created; optional. Without them, signatures are ignored.
	Keys grant.Verifier
	// Newest returns the pod with the annotations of its newest grant; optional. The runtime has those of the
	// sandbox's creation, which are older after a resize.
	Newest func(grant.Pod) grant.Pod
	// Prepared has the ResourceClaims that the node's DRA driver prepared; optional: the node has none.
	Prepared *prepared.Store
	// Unscheduled applies to containers without a scheduler's grant; "" is UnscheduledDeny.
	Unscheduled UnscheduledPolicy
	// ExemptNamespaces have containers that the plugin ignores.
	ExemptNamespaces []string
	// OptOutNamespaces have pods that can disable their limiter with CUDA_DISABLE_CONTROL=true; "*" is all.
	OptOutNamespaces []string
	Observer         Observer
	// Progress is called at each turn of the background work; optional, and set before Run.
	Progress func()
	// Trimmed is called for a container that changed the size of its usage file or of a turn file; optional, and set before Run.
	Trimmed func(containerID string)
	// RefusedChanged is called when Refused changes; optional.
	RefusedChanged func()
	Log            *slog.Logger
}

// UnscheduledPolicy is for containers with devices from the kubelet and no scheduler's annotation.
type UnscheduledPolicy string

const (
	// UnscheduledDeny gives it no GPU.
	UnscheduledDeny UnscheduledPolicy = "deny"
	// UnscheduledShare gives it the equal share of its replicas (grant.FromReplicas).
	UnscheduledShare UnscheduledPolicy = "share"
)

// Plugin handles NRI's events. It is safe for concurrent use.
type Plugin struct {
	Config

	known                  known
	intents                intents
	health                 health
	pending                pendingReleases
	stale                  staleLimits
	refusals               refusals
	wake                   chan struct{}
	optedOut, optOutDenied atomic.Uint64
	// unreconciled is why all grants are refused at present; nil: they are not.
	unreconciled atomic.Pointer[error]
	// unlisted are claims of unlisted containers that were in use at the last synchronisation.
	unlisted atomic.Pointer[[]string]
	handlers handlers
	// withoutValidators is for a runtime of an unknown version that has closed a connection of a plugin with them. It holds for
	// one session.
	withoutValidators atomic.Bool
}

func New(c Config) (*Plugin, error) {
	var errs []error
	for _, required := range []struct {
		name string
		ok   bool
	}{
		{"NodeName", c.NodeName != ""},
		{"Ledger", c.Ledger != nil},
		{"GPUs", c.GPUs != nil},
		{"Populate", c.Populate != nil},
		{"Devices", c.Devices != nil},
		{"Settings", c.Settings != nil},
		{"Log", c.Log != nil},
	} {
		if !required.ok {
			errs = append(errs, errors.New("nri plugin: "+required.name+" is not set"))
		}
	}
	if !slices.Contains([]UnscheduledPolicy{"", UnscheduledDeny, UnscheduledShare}, c.Unscheduled) {
		errs = append(errs, fmt.Errorf("nri plugin: Unscheduled is %q, not %s or %s", c.Unscheduled, UnscheduledDeny, UnscheduledShare))
	}
	if c.Settings != nil {
		errs = append(errs, c.Settings().Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p := &Plugin{Config: c, wake: make(chan struct{}, 1)}
	p.handlers.ended.L = &p.handlers.mu
	p.health.now = time.Now
	p.health.set(notConnected)
	return p, nil
}

// Wait returns when no handler runs.
func (p *Plugin) Wait() { p.handlers.wait() }

// CreateContainer returns the changes of a container's OCI spec. An error refuses the container, and
// the kubelet shows its text in the pod's events.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	defer p.observe("CreateContainer", time.Now())
	adjust, err := p.beforeDeadline(ctx, ctr.GetId(), func(ctx context.Context) (*api.ContainerAdjustment, error) {
		return p.create(ctx, pod, ctr)
	})
	if p.refusals.note(pod, ctr, err) && p.RefusedChanged != nil {
		p.RefusedChanged()
	}
	if err != nil {
		err = p.refused(err)
		p.Log.Warn("container refused", "pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "reason", err)
		return nil, nil, err
	}
	c := p.knownContainer(pod, ctr)
	c.size += proto.Size(adjust)
	p.known.add(ctr.GetId(), c)
	return adjust, nil, nil
}

// RunPodSandbox refuses a pod that is too large: the runtime lists pods without containers too.
func (p *Plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	defer p.observe("RunPodSandbox", time.Now())
	err := p.refused(checkPodSize(pod))
	if err != nil {
		p.Log.Warn("pod refused", "pod", podName(pod), "id", pod.GetId(), "reason", err)
	}
	return err
}

// StopContainer releases the claim. Its directory stays: the container still maps the files.
func (p *Plugin) StopContainer(ctx context.Context, _ *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	defer p.observe("StopContainer", time.Now())
	p.known.ended(ctr.GetId())
	p.endClaimBeforeDeadline(ctx, ctr.GetId(), release)
	return nil, nil
}

// RemoveContainer removes the claim. The runtime also calls it, with an ID only, for a failed creation.
func (p *Plugin) RemoveContainer(ctx context.Context, _ *api.PodSandbox, ctr *api.Container) error {
	defer p.observe("RemoveContainer", time.Now())
	p.intents.forget(ctr.GetId())
	p.known.remove(ctr.GetId())
	p.endClaimBeforeDeadline(ctx, ctr.GetId(), remove)
	return nil
}

func podName(pod *api.PodSandbox) string {
	if pod == nil {
		return "(unknown)"
	}
	return pod.GetNamespace() + "/" + pod.GetName()
}
