package extender

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// Config is what a process that is an extender needs.
type Config struct {
	// Client is for binds and informers: its limits should be none of the cluster's
	// bottlenecks (see install/scheduler).
	Client kubernetes.Interface
	Engine engine.Options
	// GPUQuota names gpu-manager's ConfigMap of quotas; nil: there is none.
	GPUQuota *GPUQuota
	// Key signs grants; nil: they are not signed.
	Key func() *grant.SigningKey
	// Hold and GangTimeout are Options'.
	Hold, GangTimeout time.Duration
	// Listen is the address that is listened on.
	Listen string
	// DebugAddress has the pages and the metrics, which change nothing, at an address of their own too; empty: nowhere.
	DebugAddress string
	// CertFile and KeyFile are TLS's, read again when they change; empty: plain HTTP, for
	// an address that nobody else reaches.
	CertFile, KeyFile string
	// LeaderLease is the Lease of the kube-schedulers, by "namespace/name", where there is an extender
	// beside each and no Election: requests to resize pods are answered by the one whose host
	// holds it. Empty: by each that is ready.
	LeaderLease string
	// Election is the Lease by which replicas choose the one that answers; nil: there is but
	// one replica. Each has a state of its own: two that answered would give the same GPUs twice.
	Election *Election
	// HAMiMetrics has the GPUs told of by HAMi's names of metrics, too.
	HAMiMetrics bool
	Log         *slog.Logger
	Version     string
}

// GPUQuota is a ConfigMap, and the nodes' labels that it goes by.
type GPUQuota struct {
	Namespace, Name string
	Labels          quota.Labels
}

// Run serves until ctx ends, or until the Lease is lost. What calls need goes on until the last of
// them has ended, and the Lease is given back after it.
func Run(ctx context.Context, c Config) (err error) {
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
	var ready func() error // once there is something to be ready
	counters := metrics.New()
	var find Find // once there is a feeding
	s := New(Options{
		Find:   func(namespace, name string) (*scheduler.Pod, error) { return find(namespace, name) },
		Engine: e, Cluster: cluster, Metrics: counters, Ready: func() error { return ready() },
		Key: c.Key, Hold: c.Hold, GangTimeout: c.GangTimeout, Log: c.Log, Version: c.Version,
	})
	feeding, err := kube.Feed(factory, s.Sink())
	if err != nil {
		return err
	}
	if err := feeding.Quotas(factory, e, c.Engine.Request, c.Log); err != nil {
		return err
	}
	find = feeding.Find
	resizer, err := feeding.Resizer(factory, c.resizer(running, e, func() error { return ready() }))
	if err != nil {
		return err
	}
	factories := []informers.SharedInformerFactory{factory}
	if q := c.GPUQuota; q != nil {
		one, err := feeding.GPUQuota(c.Client, q.Namespace, q.Name, q.Labels, e, c.Log)
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
		if election, err = c.elect(end); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, election.release()) }()
	}
	ready = func() error {
		switch {
		case !feeding.Synced():
			return errors.New("the cluster's nodes and pods are still being read")
		case !budgets():
			return errors.New("the cluster's PodDisruptionBudgets are still being read: the extender has to have the right to")
		case election != nil && !election.leads():
			return errNotLeading
		}
		return nil
	}
	go s.Run(running)
	resizing := make(chan struct{})
	go func() { defer close(resizing); resizer.Run(running) }()
	defer func() { end(nil); <-resizing }() // before the Lease is given back
	registry := prometheus.NewRegistry()
	registry.MustRegister(counters, metrics.Engine(e), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if c.HAMiMetrics {
		registry.MustRegister(metrics.HAMi(e))
	}
	scrape := httpserver.Few(httpserver.InFlight, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/", s.Handler())
	mux.Handle("GET /metrics", scrape)
	pages := http.NewServeMux()
	Pages(pages, e, find, ready)
	pages.Handle("GET /metrics", scrape)
	telling := make(chan struct{})
	go func() { defer close(telling); ServePages(running, c.Log, c.DebugAddress, pages) }()
	defer func() { end(nil); <-telling }()
	return serve(ctx, running, end, c, mux)
}

// gate lets calls through until it is closed, and closes when none is under way.
type gate struct {
	http.Handler
	mu     sync.RWMutex
	closed bool
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		http.Error(w, "the extender is ending", http.StatusServiceUnavailable)
		return
	}
	g.Handler.ServeHTTP(w, r)
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// drain is how long calls may take that are under way when the process is to end.
const drain = 30 * time.Second

// connections are open at the same time: far more than a kube-scheduler, its probes and a Prometheus have, and far
// fewer than would leave the process no file for its own calls.
const connections = 1024

// serve listens until ctx ends, and then lets calls end that are under way; or until running
// ends, which is the calls' own context: they end with it. When it returns none is under way.
func serve(ctx, running context.Context, end context.CancelCauseFunc, c Config, handler http.Handler) error {
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	listener = httpserver.Limit(listener, connections)
	calls := &gate{Handler: handler}
	server := &http.Server{
		Handler: calls, BaseContext: func(net.Listener) context.Context { return running },
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() {
		if c.CertFile == "" {
			ended <- server.Serve(listener)
			return
		}
		pair := &keyPair{cert: c.CertFile, key: c.KeyFile}
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
		ended <- server.ServeTLS(listener, "", "")
	}()
	c.Log.Info("serving", "address", listener.Addr().String(), "tls", c.CertFile != "")
	select {
	case err = <-ended:
	case <-running.Done():
	case <-ctx.Done():
		last, cancel := context.WithTimeout(running, drain)
		err = server.Shutdown(last)
		cancel()
	}
	cause := context.Cause(running) // nil: it goes on
	end(nil)
	err = errors.Join(cause, err, server.Close())
	calls.close()
	return err
}

// keyPair is read again when its certificate's file was changed.
type keyPair struct {
	cert, key string
	last      atomic.Pointer[loaded]
}

type loaded struct {
	at   time.Time
	pair tls.Certificate
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	last := k.last.Load()
	info, err := os.Stat(k.cert)
	if err == nil && (last == nil || !info.ModTime().Equal(last.at)) {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(k.cert, k.key); err == nil {
			last = &loaded{info.ModTime(), pair}
			k.last.Store(last)
		}
	}
	if last == nil {
		return nil, err
	}
	return &last.pair, nil // the last good one
}
