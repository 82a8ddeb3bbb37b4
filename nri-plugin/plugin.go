// Package nriplugin is the only place where a grant becomes access to a GPU. It
// connects to the container runtime by NRI, is asked about every container
// before it is created, and answers with edits of its OCI spec, with nothing,
// or with an error that refuses the container.
//
// What breaks must leave the door shut. NRI itself fails open: a request that
// is lost, late or cut off is treated as "no adjustment", and the container is
// created. So the plugin (see docs/ARCHITECTURE.md, "Fail closed")
//
//   - answers before the runtime's deadline, with an error when it isn't ready (deadline.go);
//   - validates its own adjustment, where the runtime has validators (validate.go);
//   - voids GPU requests of containers that have no grant (decide.go);
//   - holds one connection, owned by one goroutine, and makes a new one when it breaks (connection.go);
//   - trusts the runtime's list of containers over its own memory (sync.go).
//
// It imports grant, oci and oci/claimed, decides nothing about what a container gets, and is
// wired up by cmd/gpuslice-agent.
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

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

// Config is what the plugin needs. All fields but the ones marked optional are required.
type Config struct {
	// NodeName is this node's name in grants.
	NodeName string
	// Ledger books what is granted.
	Ledger *ledger.Ledger
	// GPUs returns the GPUs that can be granted, by UUID. It must not block:
	// it is called while the runtime waits.
	GPUs func() map[string]grant.GPU
	// Missing says why the node does not offer a GPU, empty if it knows nothing of it;
	// optional. It must not block.
	Missing func(uuid string) string
	// Connected is called with each new connection, before the runtime's first request; optional.
	Connected func(conn syscall.Conn)
	// Populate writes the limiter's files into a new claim's directory.
	Populate func(dir string, claim ledger.Claim) error
	// HighPriorityNamespaces are those whose containers others stand back for on a GPU
	// that they share; optional. What a container says of itself is not believed.
	HighPriorityNamespaces []string
	// Settings say how a container gets its GPUs. It must not block.
	Settings func() oci.Settings
	// Devices resolves GPUs to the edits that make them visible.
	Devices oci.DeviceEdits
	// Names orders a pod's containers, for HAMi's positional annotation; optional.
	// Without it such an annotation with several containers is refused.
	Names grant.ContainerNames
	// Keys verify grants; optional. Without them a grant needs no signature, and one
	// that it has is not looked at. A container that runs is not judged again.
	Keys grant.Verifier
	// Newest is the pod with the annotations of its newest grant, where it was resized since its
	// sandbox was made, of which alone the runtime tells; optional. It must not block.
	Newest func(grant.Pod) grant.Pod
	// Unscheduled says what a container gets that no scheduler spoke of; empty is
	// UnscheduledDeny.
	Unscheduled UnscheduledPolicy
	// ExemptNamespaces are left alone: their containers get neither grant nor void.
	ExemptNamespaces []string
	// SwitchNamespaces are those whose pods may switch their limiter off by
	// CUDA_DISABLE_CONTROL=true, "*" all. Elsewhere the variable does nothing. Such a
	// container is booked like any other, and nothing holds it to what is booked.
	SwitchNamespaces []string
	// Observer is told of requests and refusals; optional.
	Observer Observer
	// Progress is called at each turn of the background work; optional, and set before Run.
	Progress func()
	// Trimmed is told of a container whose usage file had another size and was cut back; optional, and set before Run.
	Trimmed func(containerID string)
	// Log is where refusals and connection changes go.
	Log *slog.Logger
}

// UnscheduledPolicy is what a container gets that the kubelet gave devices to, and
// in whose pod no scheduler wrote anything about GPUs.
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

	exempt  map[string]bool
	told    told
	intents intents
	health  health
	owed    owed
	behind  behind
	// wake starts a turn of the background work at once.
	wake chan struct{}
	// switchedOff and switchRefused are Switches' counts.
	switchedOff, switchRefused atomic.Uint64
	// unreconciled is why no grant is given at present; nil: none.
	unreconciled atomic.Pointer[error]
	// unlisted are the claims whose containers the runtime did not list when it was asked
	// last, and which a process used all the same.
	unlisted atomic.Pointer[[]string]
	// work counts handlers that outlived their request, so that Close can wait for them.
	work handlers
}

// New checks the configuration.
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
	p := &Plugin{Config: c, exempt: map[string]bool{}, wake: make(chan struct{}, 1)}
	for _, namespace := range c.ExemptNamespaces {
		p.exempt[namespace] = true
	}
	p.health.now = time.Now
	p.health.set(notConnected)
	return p, nil
}

// Wait returns when no handler is at work any more.
func (p *Plugin) Wait() { p.work.wait() }

// CreateContainer answers the question what a container may have. An error
// refuses the container; its text is what the user reads in the pod's events.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	defer p.handled("CreateContainer", time.Now())
	adjust, err := p.beforeDeadline(ctx, ctr.GetId(), func(ctx context.Context) (*api.ContainerAdjustment, error) {
		return p.create(ctx, pod, ctr)
	})
	if err != nil {
		err = p.refused(err)
		p.Log.Warn("container refused", "pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "reason", err)
		return nil, nil, err
	}
	told := p.toldOf(pod, ctr)
	told.size += proto.Size(adjust)
	p.told.add(ctr.GetId(), told)
	return adjust, nil, nil
}

// RunPodSandbox refuses a pod with a record that is too large. To refuse its containers is not
// enough: the runtime lists pods without containers too.
func (p *Plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	defer p.handled("RunPodSandbox", time.Now())
	err := p.refused(checkPodSize(pod))
	if err != nil {
		p.Log.Warn("pod refused", "pod", podName(pod), "id", pod.GetId(), "reason", err)
	}
	return err
}

// StopContainer gives back what the container held: its task has ended. The
// directory stays, because the container that maps it still exists.
func (p *Plugin) StopContainer(ctx context.Context, _ *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	defer p.handled("StopContainer", time.Now())
	p.told.ended(ctr.GetId())
	p.giveBackInTime(ctx, ctr.GetId(), release)
	return nil, nil
}

// RemoveContainer removes the container's directory. It is also the undo of a
// creation that failed after CreateContainer, and then has an id and nothing else.
func (p *Plugin) RemoveContainer(ctx context.Context, _ *api.PodSandbox, ctr *api.Container) error {
	defer p.handled("RemoveContainer", time.Now())
	p.intents.forget(ctr.GetId())
	p.told.remove(ctr.GetId())
	p.giveBackInTime(ctx, ctr.GetId(), remove)
	return nil
}

// podName is "namespace/name", also of a pod that the runtime no longer knows.
func podName(pod *api.PodSandbox) string {
	if pod == nil {
		return "(unknown)"
	}
	return pod.GetNamespace() + "/" + pod.GetName()
}
