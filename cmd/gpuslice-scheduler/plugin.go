package main

import (
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
)

// withPlugin registers the plugin, and its metrics with kube-scheduler's own.
func withPlugin(debug *debugServer) app.Option {
	counters := metrics.New()
	debug.log = slog.New(logr.ToSlogHandler(klog.Background()))
	factory := &plugin.Factory{
		Metrics: counters,
		Log:     debug.log,
		Started: func(e *engine.Engine, args *plugin.Args) {
			legacyregistry.RawMustRegister(counters, metrics.Engine(e))
			if args.HAMiMetrics() {
				legacyregistry.RawMustRegister(metrics.HAMi(e))
			}
		},
		Beside: debug.run,
		Leads:  (&leading{gatherer: legacyregistry.DefaultGatherer}).check,
	}
	return app.WithPlugin(plugin.Name, factory.New)
}
