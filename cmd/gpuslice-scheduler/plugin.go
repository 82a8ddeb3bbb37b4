package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
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
