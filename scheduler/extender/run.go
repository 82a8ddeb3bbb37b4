package extender

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpuslice/gpuslice/grant"
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
	// CardQuota names gpu-manager's ConfigMap of quotas; nil: there is none.
	CardQuota *CardQuota
	// Key signs grants; nil: they are not signed.
	Key func() *grant.Key
	// Hold and GangTimeout are Options'.
	Hold, GangTimeout time.Duration
	// Listen is the address that is listened on.
	Listen string
	// CertFile and KeyFile are TLS's, read again when they change; empty: plain HTTP, for
	// an address that nobody else reaches.
	CertFile, KeyFile string
	// Election is the Lease by which replicas choose the one that answers; nil: there is but
	// one replica. Each has a state of its own: two that answered would give the same cards twice.
	Election *Election
	Log      *slog.Logger
	Version  string
}

// CardQuota is a ConfigMap, and the nodes' labels that it goes by.
type CardQuota struct {
	Namespace, Name string
	Labels          quota.Labels
}

// Election is a Lease.
type Election struct{ Namespace, Name, Identity string }

var errNotLeading = errors.New("another replica answers")

// Run serves until ctx ends, or until another replica has taken over.
func Run(ctx context.Context, c Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e, err := engine.New(c.Engine)
	if err != nil {
		return err
	}
	factory := kube.NewInformers(c.Client)
	pods := factory.Core().V1().Pods().Lister()
	feeding, err := kube.Feed(factory, e)
	if err != nil {
		return err
	}
	if err := feeding.Quotas(factory, e, c.Engine.Request, c.Log); err != nil {
		return err
	}
	factories := []informers.SharedInformerFactory{factory}
	if q := c.CardQuota; q != nil {
		one, err := feeding.CardQuota(c.Client, q.Namespace, q.Name, q.Labels, e, c.Log)
		if err != nil {
			return err
		}
		factories = append(factories, one)
	}
	for _, f := range factories {
		f.Start(ctx.Done())
		defer f.Shutdown()
	}
	defer cancel(nil) // before Shutdown, which waits

	var leading atomic.Bool
	ready := func() error {
		switch {
		case !feeding.Synced():
			return errors.New("the cluster's nodes and pods are still being read")
		case c.Election != nil && !leading.Load():
			return errNotLeading
		}
		return nil
	}
	counters := metrics.New()
	s := New(Options{
		Engine: e, Cluster: NewCluster(c.Client, pods), Metrics: counters, Ready: ready,
		Key: c.Key, Hold: c.Hold, GangTimeout: c.GangTimeout, Log: c.Log, Version: c.Version,
	})
	go s.Run(ctx)
	if c.Election != nil {
		if err := c.elect(ctx, &leading, cancel); err != nil {
			return err
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(counters, metrics.Engine(e), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/", s.Handler())
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return serve(ctx, c, mux)
}

// elect has the process lead once the Lease is its own; when that is lost it ends, for
// what it has reserved another one doesn't know.
func (c Config) elect(ctx context.Context, leading *atomic.Bool, cancel context.CancelCauseFunc) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Election.Namespace, Name: c.Election.Name},
			Client:     c.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Election.Identity},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true, Name: c.Election.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leading.Store(true) },
			OnStoppedLeading: func() {
				leading.Store(false)
				cancel(errors.New("the lease of the leader is lost"))
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	go elector.Run(ctx)
	return nil
}

// serve listens until ctx ends, and then lets calls end that are under way.
func serve(ctx context.Context, c Config, handler http.Handler) error {
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: handler, BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
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
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err = server.Shutdown(last)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
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
