package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/mod/semver"
)

// The plugin's identity towards the runtime. The index is high, so that the plugin
// sees what others did to a container and has the last word on what it owns.
const (
	PluginName  = "gpuslice"
	PluginIndex = "90"
)

// Variables for the tests' sake alone.
var (
	// startPatience is how long connecting, registering and being configured may
	// take together. The runtime itself waits 5 s by default for a registration.
	startPatience = 10 * time.Second
	// syncPatience is how long the runtime may take to synchronise a configured
	// plugin. Runtimes before NRI 0.12 leave a plugin whose synchronisation
	// failed half registered: connected, and asked about nothing.
	syncPatience = 15 * time.Second
	// reconcilePause is how long a plugin that could not reconcile waits before it
	// connects again.
	reconcilePause = 5 * time.Second
)

const (
	// registerGrace is how long a registration may take to notice a closed connection.
	registerGrace = time.Second

	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// settled is how long a connection must have lasted for the next failure
	// to start again from the first backoff.
	settled = 10 * time.Second
)

// Run keeps one connection to the runtime's NRI socket until ctx ends. It is the
// only place that connects, so there are never two connections: two would set the
// same variables of one container and conflict with each other.
func (p *Plugin) Run(ctx context.Context, socket string) error {
	p.health.set(notConnected)
	var background sync.WaitGroup
	background.Go(func() { p.background(ctx) })
	defer func() {
		background.Wait()
		p.Wait()
	}()
	backoff := firstBackoff
	for {
		since := time.Now()
		err := p.session(ctx, socket)
		if ctx.Err() != nil {
			return nil
		}
		p.health.set(notConnected + ": " + err.Error())
		if time.Since(since) > settled {
			backoff = firstBackoff
		}
		p.Log.Warn("NRI connection lost or not made; trying again", "socket", socket, "error", err, "in", backoff)
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// whyNotSynchronised is the advice if the synchronisation keeps failing.
const whyNotSynchronised = ": if this repeats, containers on this node have environments, or pods have annotations, that are too large for NRI's messages " +
	"(created while gpuslice was not connected: it refuses them otherwise): `gpuslice doctor` (large-containers) names them; delete those pods"

// session is one connection. It holds the handlers that the stub calls, so that a
// late event of an old connection can be told from one of the present one.
type session struct {
	*Plugin
	ended  atomic.Bool
	once   sync.Once
	synced chan struct{}
	stub   stub.Stub
}

func (p *Plugin) session(ctx context.Context, socket string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	dialer := net.Dialer{Timeout: startPatience}
	dialed, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("connect to NRI (is it enabled in the runtime's configuration?): %w", err)
	}
	conn := &countingConn{Conn: dialed}
	defer conn.Close()
	if raw, ok := dialed.(syscall.Conn); ok && p.Connected != nil {
		p.Connected(raw)
	}

	s := &session{Plugin: p, synced: make(chan struct{})}
	defer s.ended.Store(true)
	s.stub, err = stub.New(s,
		stub.WithPluginName(PluginName), stub.WithPluginIdx(PluginIndex),
		stub.WithConnection(conn), stub.WithOnClose(func() {}),
		stub.WithLogger(stubLogger{p.Log}), stub.WithFailurePolicy(failurePolicy),
	)
	if err != nil {
		return fmt.Errorf("make the NRI stub: %w", err)
	}

	if err := s.start(ctx, conn); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.stub.Wait()
	}()
	// Stop after the last handler: the stub's Stop waits for its server.
	defer func() {
		s.stub.Stop()
		<-ended
	}()

	select {
	case <-s.synced:
	case <-ended:
		return errors.New("the runtime closed the connection before it synchronised" + whyNotSynchronised)
	case <-time.After(syncPatience):
		return fmt.Errorf("the runtime did not synchronise within %v"+whyNotSynchronised, syncPatience)
	case <-ctx.Done():
		return ctx.Err()
	}
	var again <-chan time.Time
	if why := p.unreconciled.Load(); why != nil {
		again = time.After(reconcilePause)
	} else {
		p.Log.Info("guarding the node", "socket", socket, "nri", s.stub.RuntimeNRIVersion())
	}
	select {
	case <-ended:
		return errors.New("the runtime closed the connection")
	case <-again:
		return fmt.Errorf("the ledger was not reconciled: %w", *p.unreconciled.Load())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start runs the stub's Start under a watchdog. Start waits for the runtime's
// Configure request without a deadline, and ignores its context: when the runtime
// hangs up between Register and Configure, it would wait for ever. The watchdog
// then sends that request itself, and s.Configure answers it with an error.
func (s *session) start(ctx context.Context, conn *countingConn) error {
	started := make(chan error, 1)
	go func() { started <- s.stub.Start(ctx) }()

	select {
	case err := <-started:
		return err
	case <-ctx.Done():
	case <-time.After(startPatience):
	}
	s.ended.Store(true)
	_ = conn.Close()
	select {
	case err := <-started: // it was registering, which a closed connection ends
		return s.givenUp(ctx, err)
	case <-time.After(registerGrace):
	}
	// It wrote its registration, and waits for what comes after it.
	if waiting, ok := s.stub.(api.PluginService); ok && conn.writes.Load() > 0 {
		_, _ = waiting.Configure(context.Background(), &api.ConfigureRequest{})
	}
	return s.givenUp(ctx, <-started)
}

// givenUp is why a connection that was not made in time was given up.
func (s *session) givenUp(ctx context.Context, err error) error {
	if err == nil { // configured after all, and too late
		s.stub.Stop()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the runtime did not register and configure the plugin within %v", startPatience)
}

// countingConn counts what is written. The count also orders memory: who has seen a
// write has seen what its writer did before.
type countingConn struct {
	net.Conn
	writes atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// Configure subscribes to the events that this runtime has.
func (s *session) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	if s.ended.Load() {
		return 0, errors.New("this connection was given up")
	}
	s.health.setTimeout(s.stub.RequestTimeout())

	events := api.EventMask(0)
	events.Set(api.Event_CREATE_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER)
	validates := hasValidators(s.stub.RuntimeNRIVersion())
	if validates {
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	} else {
		s.Log.Warn("this runtime has no NRI validators: a request that is lost on the way to gpuslice creates a container without a GPU, and is not rejected; containerd 2.2 or CRI-O 1.34 have them",
			"runtime", runtime, "version", version, "nri", s.stub.RuntimeNRIVersion())
	}
	if undoesPods(runtime, version) {
		events.Set(api.Event_RUN_POD_SANDBOX)
	}
	s.intents.enable(validates)
	return events, nil
}

// undoesPods says whether a runtime cleans up a pod that a plugin refuses. Older versions of
// containerd keep the pod's shim and name, and exit at the next start because of them
// (containerd issue 13355). With those, only the containers of a large pod are refused.
func undoesPods(runtime, version string) bool {
	if !strings.HasPrefix(version, "v") {
		version = "v" + version
	}
	if runtime != "containerd" || !semver.IsValid(version) {
		return false
	}
	fixed := map[string]string{"v2.2": "v2.2.6", "v2.3": "v2.3.3"}[semver.MajorMinor(version)]
	if fixed == "" {
		fixed = "v2.4.0-0" // betas included
	}
	return semver.Compare(version, fixed) >= 0
}

// failurePolicy has a runtime refuse a container whose request to us was lost, by a timeout or
// a broken connection. NRI knows it from 0.12.5 on; there a validator of a closed connection is
// called no more, on which older ones' refusal rests (ValidateContainerAdjustment).
//
// The plugin is dropped all the same, and connects again: a node where nothing can be created
// while an agent hangs is worse than one where nothing gets a GPU.
var failurePolicy = &api.FailurePolicy{FailRequest: true}

// hasValidators tells whether the runtime's NRI calls validators. A plugin that
// subscribes to them with an older one is refused at registration.
func hasValidators(nriVersion string) bool {
	if nriVersion != "" && !strings.HasPrefix(nriVersion, "v") {
		nriVersion = "v" + nriVersion
	}
	return semver.IsValid(nriVersion) && semver.Compare(nriVersion, "v0.10.0") >= 0
}

// CreateContainer refuses events of a connection that was given up. It counts as work
// before it looks, so that Run waits for it or it sees that Run has ended.
func (s *session) CreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	s.work.begin()
	defer s.work.end()
	if s.ended.Load() {
		return nil, nil, errors.New("gpuslice gave this connection up; the container will be tried again")
	}
	return s.Plugin.CreateContainer(ctx, pod, ctr)
}

// RunPodSandbox refuses events of a connection that was given up.
func (s *session) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	if s.ended.Load() {
		return errors.New("gpuslice gave this connection up; the pod will be tried again")
	}
	return s.Plugin.RunPodSandbox(ctx, pod)
}

// Synchronize reconciles, and makes the plugin ready. Where it can't, the plugin
// stays connected, for it still keeps GPUs from containers without a grant; it
// gives no grant itself, and session connects again to be told again what runs.
func (s *session) Synchronize(ctx context.Context, pods []*api.PodSandbox, ctrs []*api.Container) ([]*api.ContainerUpdate, error) {
	if s.ended.Load() {
		return nil, errors.New("gpuslice gave this connection up")
	}
	defer s.handled("Synchronize", time.Now())
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, innerDeadline(time.Now(), deadline))
		defer cancel()
	}
	if err := s.reconcile(ctx, pods, ctrs); err != nil {
		s.Log.Error("ledger not reconciled; no grant is given until it is", "error", err)
		s.unreconciled.Store(&err)
		s.health.set("the ledger is not reconciled with the runtime: " + shorten(err).Error())
	} else {
		s.unreconciled.Store(nil)
		s.health.set("")
	}
	s.once.Do(func() { close(s.synced) })
	return nil, nil
}

// stubLogger sends the stub's own log lines to ours, one level down: its
// information is our detail.
type stubLogger struct{ log *slog.Logger }

func (l stubLogger) Debugf(context.Context, string, ...any) {}
func (l stubLogger) Infof(_ context.Context, format string, args ...any) {
	l.log.Debug(fmt.Sprintf(format, args...))
}
func (l stubLogger) Warnf(_ context.Context, format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...))
}
func (l stubLogger) Errorf(_ context.Context, format string, args ...any) {
	l.log.Error(fmt.Sprintf(format, args...))
}
