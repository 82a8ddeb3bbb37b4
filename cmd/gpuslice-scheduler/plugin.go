package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	compmetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
)

func withPlugin(debugAddress *string) app.Option {
	counters := metrics.New()
	log := slog.New(logr.ToSlogHandler(klog.Background()))
	factory := &plugin.Factory{
		Metrics: counters,
		Log:     log,
		Started: func(e *engine.Engine, args *plugin.Args) {
			legacyregistry.RawMustRegister(counters, metrics.Engine(e))
			if args.HAMiMetrics() {
				legacyregistry.RawMustRegister(metrics.HAMi(e))
			}
		},
		// kube-scheduler's own port cannot have further handlers.
		Serve: func(ctx context.Context, e *engine.Engine, cluster *kube.Feed) {
			mux := http.NewServeMux()
			extender.HandleDebug(mux, e, cluster.Find, nil)
			extender.ServeDebug(ctx, log, *debugAddress, mux)
		},
		CheckLeader: (&leader{gatherer: legacyregistry.DefaultGatherer}).check,
	}
	return app.WithPlugin(plugin.Name, factory.New)
}

// leader checks whether this kube-scheduler is the leader. kube-scheduler sets a metric before an
// election starts; without it, there is none.
type leader struct {
	gatherer compmetrics.Gatherer
	now      func() time.Time

	mu    sync.Mutex
	first time.Time // first call
}

// electionStart is when an election has certainly started after the first call.
const electionStart = 10 * time.Second

const electionMetric = "leader_election_master_status" // 1 for the leader

var errNotLeader = errors.New("another replica is the leader")

func (l *leader) check() error {
	families, err := l.gatherer.Gather()
	if err != nil && len(families) == 0 {
		return fmt.Errorf("read the leader election metric: %w", err)
	}
	election := false
	for _, family := range families {
		if family.GetName() != electionMetric {
			continue
		}
		for _, m := range family.GetMetric() {
			election = true
			if m.GetGauge().GetValue() == 1 {
				return nil
			}
		}
	}
	if election {
		return errNotLeader
	}
	now := time.Now
	if l.now != nil {
		now = l.now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first.IsZero() {
		l.first = now()
	}
	if now().Sub(l.first) < electionStart {
		return errors.New("the leader is not known yet")
	}
	return nil
}
