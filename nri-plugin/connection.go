package nriplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/mod/semver"

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
)

// The plugin's name and index in the runtime. The index is high, so that the plugin runs after others.
const (
	PluginName  = "gpuslice"
	PluginIndex = "90"
)

var (
	// startPatience is the time to connect, register and be configured. The runtime waits 5 s by default
	// for a registration.
	startPatience = 10 * time.Second
	// syncPatience is the time until the runtime synchronises a configured plugin. Runtimes before NRI 0.12
	// keep a failed connection.
	syncPatience = 15 * time.Second
	// reconcilePause is the time before a new connection when the ledger was not reconciled.
	reconcilePause = 5 * time.Second
)

const (
	registerGrace = time.Second

	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// lastDialBackoff is short: a runtime that starts creates containers at once.
	lastDialBackoff = 500 * time.Millisecond
	settled         = 10 * time.Second
)

// Run keeps one connection to the runtime's NRI socket until ctx ends. Without a socket it does only the background
// work: the claims are those of gpuslice-runtime.
func (p *Plugin) Run(ctx context.Context, socket string) error {
	p.health.set(notConnected)
	var background sync.WaitGroup
	background.Go(func() { p.background(ctx) })
	defer func() {
		background.Wait()
		p.Wait()
	}()
	if socket == "" {
		p.health.set("")
		<-ctx.Done()
		return nil
	}
	backoff := firstBackoff
	var away logonce.Problem
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
		if failed, is := errors.AsType[*net.OpError](err); is && failed.Op == "dial" {
			backoff = min(backoff, lastDialBackoff)
			away.Warn(p.Log.With("socket", socket), "NRI connection failed; retrying", err)
		} else {
			away = logonce.Problem{}
			p.Log.Warn("NRI connection lost or failed; retrying", "socket", socket, "error", err, "in", backoff)
		}
		periodic.Sleep(ctx, backoff)
		backoff = min(2*backoff, lastBackoff)
	}
}

const syncAdvice = ": if this repeats, containers on this node have environments, or pods have annotations, that are too large for NRI's messages " +
	"(created while gpuslice was not connected: it refuses them otherwise): `gpuslice doctor` (large-containers) names them; delete those pods"

type session struct {
	*Plugin
	ended  atomic.Bool
	once   sync.Once
	synced chan struct{}
	stub   stub.Stub
	trial  atomic.Bool // of validators, which the runtime may not know
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
		return fmt.Errorf("create the NRI stub: %w", err)
	}

	if err := s.start(ctx, conn); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.stub.Wait()
	}()
	defer func() {
		s.stub.Stop()
		<-ended
	}()

	select {
	case <-s.synced:
		p.withoutValidators.Store(false) // the next runtime may have them
	case <-ended:
		s.rejected()
		return errors.New("the runtime closed the connection before it synchronised" + syncAdvice)
	case <-time.After(syncPatience):
		return fmt.Errorf("the runtime did not synchronise within %v"+syncAdvice, syncPatience)
	case <-ctx.Done():
		return ctx.Err()
	}
	var again <-chan time.Time
	if reason := p.unreconciled.Load(); reason != nil {
		again = time.After(reconcilePause)
	} else {
		p.Log.Info("connected to the container runtime", "socket", socket, "nri", s.stub.RuntimeNRIVersion())
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

// start calls the stub's Start, which waits for the runtime's Configure request without a deadline, also on a
// closed connection. At the deadline, start sends that request itself, and s.Configure returns an error.
func (s *session) start(ctx context.Context, conn *countingConn) error {
	started := make(chan error, 1)
	go func() { started <- s.stub.Start(ctx) }()

	select {
	case err := <-started:
		if err != nil { // also after Configure, if the answer to the registration had not arrived
			s.rejected()
		}
		return err
	case <-ctx.Done():
	case <-time.After(startPatience):
	}
	s.ended.Store(true)
	_ = conn.Close()
	select {
	case err := <-started: // a closed connection ends a registration
		return s.startError(ctx, err)
	case <-time.After(registerGrace):
	}
	// It has sent its registration, and waits for Configure.
	if waiting, ok := s.stub.(api.PluginService); ok && conn.writes.Load() > 0 {
		_, _ = waiting.Configure(context.Background(), &api.ConfigureRequest{})
	}
	return s.startError(ctx, <-started)
}

// rejected is for a connection that ended before it was synchronised: a runtime without validators closes one with them.
func (s *session) rejected() {
	if s.trial.Load() {
		s.withoutValidators.Store(!s.withoutValidators.Load())
	}
}

func (s *session) startError(ctx context.Context, err error) error {
	if err == nil { // configured, but too late
		s.stub.Stop()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the runtime did not register and configure the plugin within %v", startPatience)
}

// countingConn counts writes, and orders memory: a reader of the count sees what the writer did before.
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
		return 0, errors.New("gpuslice closed this connection")
	}
	s.health.setTimeout(s.stub.RequestTimeout())

	events := api.EventMask(0)
	events.Set(api.Event_CREATE_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER)
	nri := nriVersion(s.stub.RuntimeNRIVersion(), runtime, version)
	validates := hasValidators(nri)
	if nri == "" {
		validates = !s.withoutValidators.Load()
		s.trial.Store(true)
		s.Log.Warn("the runtime's NRI version is unknown: validators are tried with every second connection until it accepts one", "runtime", runtime, "version", version, "validators", validates)
	}
	if validates {
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	} else {
		s.Log.Warn("this runtime has no NRI validators: a request that is lost creates a container without a GPU, and is not rejected; use containerd 2.2 or CRI-O 1.34",
			"runtime", runtime, "version", version, "nri", nri)
	}
	if cleansUpPods(runtime, version) {
		events.Set(api.Event_RUN_POD_SANDBOX)
	}
	s.intents.enable(validates)
	return events, nil
}

// cleansUpPods returns whether a runtime cleans up a pod that a plugin refuses. Other versions of containerd
// exit at the next start because of such a pod (containerd issue 13355).
func cleansUpPods(runtime, version string) bool {
	version = canonical(version)
	if runtime != "containerd" || version == "" {
		return false
	}
	fixed := cmp.Or(map[string]string{"v2.2": "v2.2.6", "v2.3": "v2.3.3"}[semver.MajorMinor(version)], "v2.4.0-0") // betas included
	return semver.Compare(version, fixed) >= 0
}

// failurePolicy makes the runtime (NRI 0.12.5 and newer) refuse a container if its request to this plugin was
// lost.
var failurePolicy = &api.FailurePolicy{FailRequest: true}

// hasValidators returns whether the runtime's NRI has validators; older versions reject a plugin with them.
func hasValidators(nri string) bool { return nri != "" && semver.Compare(nri, "v0.10.0") >= 0 }

// nriVersion returns the version of the runtime's NRI, or "" if it is unknown. The stub infers it only from versions
// with a "v", which CRI-O and some builds of containerd do not report.
func nriVersion(reported, runtime, version string) string {
	if reported = canonical(reported); reported != "" && semver.Compare(reported, "v0.0.0") > 0 {
		return reported
	}
	inferred, err := api.InferVersionFromRuntime(runtime, canonical(version))
	if err != nil {
		return ""
	}
	return inferred
}

// releasePattern omits what distributions append to a version ("1.7.24~ds1", "v2.2.0-k3s1").
var releasePattern = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(-(alpha|beta|rc)[0-9A-Za-z.-]*)?)`)

// canonical returns a version in the form of package semver, or "".
func canonical(version string) string {
	m := releasePattern.FindStringSubmatch(version)
	if m == nil || !semver.IsValid("v"+m[1]) {
		return ""
	}
	return "v" + m[1]
}

// CreateContainer rejects events of a closed connection. It begins before the check, so that Run waits for it.
func (s *session) CreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	s.handlers.begin()
	defer s.handlers.end()
	if s.ended.Load() {
		return nil, nil, errors.New("gpuslice closed this connection; the kubelet retries the container")
	}
	return s.Plugin.CreateContainer(ctx, pod, ctr)
}

func (s *session) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	if s.ended.Load() {
		return errors.New("gpuslice closed this connection; the kubelet retries the pod")
	}
	return s.Plugin.RunPodSandbox(ctx, pod)
}

// Synchronize reconciles the ledger. On an error the plugin stays connected and refuses all grants, so that
// containers without a grant get no GPU, until session connects again.
func (s *session) Synchronize(ctx context.Context, pods []*api.PodSandbox, ctrs []*api.Container) ([]*api.ContainerUpdate, error) {
	if s.ended.Load() {
		return nil, errors.New("gpuslice closed this connection")
	}
	defer s.observe("Synchronize", time.Now())
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, innerDeadline(time.Now(), deadline))
		defer cancel()
	}
	if err := s.reconcile(ctx, pods, ctrs); err != nil {
		s.Log.Error("failed to reconcile the ledger; refusing all grants", "error", err)
		s.unreconciled.Store(&err)
		s.health.set("the ledger is not reconciled with the runtime: " + shorten(err).Error())
	} else {
		s.unreconciled.Store(nil)
		s.health.set("")
	}
	s.once.Do(func() { close(s.synced) })
	return nil, nil
}

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
