package extender

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/gang/podgroups"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/webhook/certificate"
)

type Config struct {
	// Client's rate limits have to be high (see install/scheduler).
	Client kubernetes.Interface
	// PodGroups reads PodGroup objects; nil: none can be read.
	PodGroups dynamic.Interface
	Engine    engine.Options
	// GPUQuota is gpu-manager's ConfigMap of quotas; its name may be empty.
	GPUQuota                         cache.ObjectName
	Keys                             *grant.SigningKeyFile // nil: unsigned grants
	ReservationTimeout, GroupTimeout time.Duration
	ScoreWithPreferences, BestNodes  int
	GroupTopology                    []string
	Listen                           string
	// DebugAddress serves the debug pages and metrics a second time, over plain HTTP; may be empty.
	DebugAddress string
	// CertFile and KeyFile are reloaded when they change; empty: plain HTTP.
	CertFile, KeyFile string
	// LeaderLease is the kube-schedulers' Lease, "namespace/name", for an extender on each of their
	// hosts: only the one on the leader's host places pods.
	LeaderLease string
	// Election is nil for a single replica. Reservations are in memory, so only one replica may
	// answer.
	Election    *Election
	HAMiMetrics bool
	Log         *slog.Logger
	Version     string
}

// Run serves until ctx ends or the Lease is lost.
func Run(ctx context.Context, c Config) (err error) {
	if c.ReservationTimeout < 0 || c.GroupTimeout < 0 {
		return fmt.Errorf("reservation timeout %v, group timeout %v: must not be negative: set --reservation-timeout and "+
			"--group-timeout to more than 0, or leave them out for the defaults", c.ReservationTimeout, c.GroupTimeout)
	}
	if c.BestNodes < 0 {
		return fmt.Errorf("%d best nodes: must not be negative: set --best-nodes to 1 or more", c.BestNodes)
	}
	if c.LeaderLease != "" && c.Election != nil {
		return errors.New("--leader-lease with an own election: only one Lease can name the leader: set --leader-elect=false, or leave --leader-lease out")
	}
	running, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	e, err := engine.New(c.Engine)
	if err != nil {
		return err
	}
	factory := kube.NewInformers(c.Client)
	cluster, err := NewCluster(c.Client, factory)
	if err != nil {
		return err
	}
	budgets := factory.Policy().V1().PodDisruptionBudgets().Informer().HasSynced
	var ready func() error // set below
	counters := metrics.New()
	var find Find       // set below
	var objects Objects // set below
	s := New(Options{
		Find:    func(namespace, name string) (*scheduler.Pod, error) { return find(namespace, name) },
		Objects: func() ([]*v1.Pod, []*v1.Node) { return objects() },
		Engine:  e, Cluster: cluster, Metrics: counters, Ready: func() error { return ready() },
		Keys: c.Keys, ReservationTimeout: c.ReservationTimeout, GroupTimeout: c.GroupTimeout, GroupTopology: c.GroupTopology,
		ScoreWithPreferences: c.ScoreWithPreferences, BestNodes: c.BestNodes, Log: c.Log, Version: c.Version,
	})
	podGroups := podgroups.New(c.Client.Discovery(), c.PodGroups, c.Log, s.podGroupChanged)
	cluster.minimums = podGroups
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(kube.Handler[*v1.Pod]{Set: s.podChanged,
		Replaced: func(_, pod *v1.Pod) { s.podChanged(pod) }, Gone: s.podChanged}); err != nil {
		return fmt.Errorf("watch pods of groups: %w", err)
	}
	feed, err := kube.NewFeed(factory, s.Sink())
	if err != nil {
		return err
	}
	if err := feed.Quotas(factory, e, c.Engine.Request, c.Log); err != nil {
		return err
	}
	find, objects = feed.Find, feed.Objects
	takeover := &kube.Takeover{Client: c.Client, Feed: feed, Forget: e.Forget, Log: c.Log, RequestsGPUs: func(p *v1.Pod) bool {
		r, err := e.Request(convert.Pod(p))
		return r != nil || err != nil
	}}
	s.Term = takeover.Term
	resizer, err := feed.Resizer(factory, c.resizer(running, e, func(ctx context.Context) (fence.Term, error) {
		if err := ready(); err != nil {
			return fence.Term{}, err
		}
		return takeover.Term(ctx)
	}))
	if err != nil {
		return err
	}
	refusals, err := feed.Refusals(factory, kube.RefusalsConfig{
		Client: c.Client, Log: c.Log, Event: resizer.Event,
		Term: func() (fence.Term, error) {
			if err := ready(); err != nil {
				return fence.Term{}, err
			}
			return takeover.Fence.Term()
		},
	})
	if err != nil {
		return err
	}
	factories := []informers.SharedInformerFactory{factory}
	if q := c.GPUQuota; q.Name != "" {
		one, err := feed.GPUQuota(c.Client, q.Namespace, q.Name, e, c.Log)
		if err != nil {
			return err
		}
		factories = append(factories, one)
	}
	for _, f := range factories {
		f.Start(running.Done())
		defer f.Shutdown()
	}
	defer end(nil) // before Shutdown, which waits

	var election *leader
	if c.Election != nil {
		if election, takeover.Fence, err = c.elect(end); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, election.release()) }()
	}
	ready = func() error {
		switch {
		case !feed.Synced():
			return errors.New("reading the cluster's nodes and pods")
		case !budgets():
			return errors.New("reading PodDisruptionBudgets: check that the extender's ClusterRole allows it")
		case election != nil && !election.leads():
			return errNotLeading
		}
		return nil
	}
	var tasks sync.WaitGroup
	defer func() { end(nil); tasks.Wait() }() // before the Lease is released
	if c.LeaderLease != "" {
		if takeover.Fence, err = c.follow(); err != nil {
			return err
		}
		takeover.Fence.Read(running) // so that the first calls are answered
		tasks.Go(func() { takeover.Fence.Run(running, followInterval) })
	}
	tasks.Go(func() { s.Run(running) })
	tasks.Go(func() { resizer.Run(running) })
	tasks.Go(func() { podGroups.Run(running) })
	tasks.Go(func() { refusals.Run(running) })
	registry := prometheus.NewRegistry()
	registry.MustRegister(counters, metrics.Engine(e), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if c.HAMiMetrics {
		registry.MustRegister(metrics.HAMi(e))
	}
	scrape := httpserver.Few(httpserver.InFlight, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/", s.Handler())
	mux.Handle("GET /metrics", scrape)
	pages := http.NewServeMux()
	HandleDebug(pages, e, find, objects, ready)
	pages.Handle("GET /metrics", scrape)
	httpserver.HandleProfiles(pages)
	tasks.Go(func() { ServeDebug(running, c.Log, c.DebugAddress, pages) })
	return serve(ctx, running, end, c, mux)
}

// gate makes close wait for calls in progress.
type gate struct {
	http.Handler
	mu     sync.RWMutex
	closed bool
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		http.Error(w, "the extender is shutting down", http.StatusServiceUnavailable)
		return
	}
	g.Handler.ServeHTTP(w, r)
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

const (
	drain       = 30 * time.Second // for calls in progress at shutdown
	connections = 1024             // leaves file descriptors for calls to the API server
)

// serve also ends when running, the context of the calls, ends. No call is in progress when it
// returns.
func serve(ctx, running context.Context, end context.CancelCauseFunc, c Config, handler http.Handler) error {
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	listener = httpserver.Limit(listener, connections)
	calls := &gate{Handler: handler}
	server := &http.Server{
		Handler: calls, BaseContext: func(net.Listener) context.Context { return withServing(running) },
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	serve := server.Serve
	if c.CertFile != "" {
		files, err := certificate.NewFiles(c.CertFile, c.KeyFile, time.Now, c.Log)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.GetCertificate}
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	ended := make(chan error, 1)
	go func() { ended <- serve(listener) }()
	c.Log.Info("serving", "address", listener.Addr().String(), "tls", c.CertFile != "")
	select {
	case err = <-ended:
	case <-running.Done():
	case <-ctx.Done():
		last, cancel := context.WithTimeout(running, drain)
		err = server.Shutdown(last)
		cancel()
	}
	cause := context.Cause(running)
	end(nil)
	err = errors.Join(cause, err, server.Close())
	calls.close()
	return err
}

func (c Config) resizer(ctx context.Context, e *engine.Engine, term func(context.Context) (fence.Term, error)) kube.ResizerConfig {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.Client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "gpuslice-extender"})
	return kube.ResizerConfig{
		Engine: e, Client: c.Client, Keys: c.Keys, Log: c.Log, Term: term,
		Event: func(pod *v1.Pod, kind, reason, message string) { recorder.Event(pod, kind, reason, message) },
	}
}

// followInterval is kube-scheduler's interval of renewals.
const followInterval = 2 * time.Second

// follow returns the fence of the kube-scheduler on this host: the holder of LeaderLease starts with the host's name
// and "_".
func (c Config) follow() (*fence.Fence, error) {
	namespace, name, _ := strings.Cut(c.LeaderLease, "/")
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host name: %w", err)
	}
	return fence.Follow(c.Client, namespace, name, func(holder string) bool { return strings.HasPrefix(holder, host+"_") }), nil
}

// Election is the Lease by which replicas elect a leader.
type Election struct {
	Namespace, Name, Identity string

	renew time.Duration // renew deadline; 0: 10 s
}

var (
	errNotLeading = errors.New("another replica is the leader")
	errLost       = errors.New("lost the leader election lease")
)

const (
	waiting = iota
	leading
	stopped
)

type leader struct {
	state atomic.Int32
	lock  resourcelock.Interface
	end   context.CancelFunc
	ended chan struct{}
}

func (l *leader) leads() bool { return l.state.Load() == leading }

// elect joins the election until release. It calls lost when another replica may lead, which does
// not know the reservations of this one.
//
// client-go's ReleaseOnCancel is not used: it releases the Lease while binds are in progress.
func (c Config) elect(lost func(error)) (*leader, *fence.Fence, error) {
	lock, leads := fence.NewLock(&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: c.Election.Namespace, Name: c.Election.Name},
		Client:     c.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.Election.Identity},
	}, c.Client, c.Election.Namespace, c.Election.Name, lost)
	l := &leader{ended: make(chan struct{}), lock: lock}
	renew := cmp.Or(c.Election.renew, 10*time.Second)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l.lock, Name: c.Election.Name,
		LeaseDuration: renew + renew/2, RenewDeadline: renew, RetryPeriod: renew / 5,
		Callbacks: leaderelection.LeaderCallbacks{
			// It can be called after OnStoppedLeading.
			OnStartedLeading: func(context.Context) { l.state.CompareAndSwap(waiting, leading) },
			OnStoppedLeading: func() {
				l.state.Store(stopped)
				lost(errLost)
			},
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("leader election: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	l.end = end
	go func() {
		defer close(l.ended)
		elector.Run(ctx)
	}()
	return l, leads, nil
}

// release leaves the election. Call it when no call is in progress.
func (l *leader) release() error {
	kept := l.leads()
	l.end()
	<-l.ended
	if !kept {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	is, _, err := l.lock.Get(ctx)
	if err == nil && is.HolderIdentity == l.lock.Identity() {
		now := metav1.Now()
		err = l.lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: is.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil {
		return fmt.Errorf("release the leader election lease: %w", err)
	}
	return nil
}
