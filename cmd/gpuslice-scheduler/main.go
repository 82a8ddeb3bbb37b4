// Command gpuslice-scheduler is kube-scheduler with the plugin GPUSlice, and with the subcommands
// extender, webhook and grant-keys. It is a separate module because it imports k8s.io/kubernetes.
package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/pkg/features"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
)

const manual = `gpuslice-scheduler is kube-scheduler with the plugin GPUSlice, which assigns shares of
GPUs to pods. It has kube-scheduler's flags and this one:

  --debug-address   serve / (a page of the cluster's GPUs, their pods and pending pods),
                    /debug/state (the same as text or JSON) and, to clients at a loopback
                    address, /debug/pprof/ (unless enableProfiling is false) on this host:port,
                    over plain HTTP (default 127.0.0.1:10261); empty: disabled

install/scheduler/config.yaml, a configuration of kube-scheduler (--config), enables the
plugin. Without it, gpuslice-scheduler is a plain kube-scheduler.

  gpuslice-scheduler extender     for a kube-scheduler that cannot be replaced
  gpuslice-scheduler webhook      completes and validates new pods
  gpuslice-scheduler grant-keys   creates the keys for grants`

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	var debugAddress string
	leads := make(chan *fence.Fence, 1)
	var profiling atomic.Bool
	configured := func(c *config.CompletedConfig) {
		profiling.Store(c.ComponentConfig.EnableProfiling)
		leads <- fenceOf(c)
	}
	root := schedulerCommand(configured, withPlugin(&debugAddress, profiling.Load, func() *fence.Fence { return <-leads }))
	root.Use = "gpuslice-scheduler"
	root.Short = "kube-scheduler with GPU memory and compute time"
	root.Long = manual
	root.Flags().StringVar(&debugAddress, "debug-address", "127.0.0.1:10261", "serve /, /debug/state and /debug/pprof/ on this host:port; empty: disabled")
	root.AddCommand(subcommands()...)
	return root
}

func withPlugin(debugAddress *string, profiling func() bool, leads func() *fence.Fence) app.Option {
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
			extender.HandleDebug(mux, e, cluster.Find, cluster.Objects, nil)
			mux.Handle("GET /debug/pprof/", profiles(profiling))
			extender.ServeDebug(ctx, log, *debugAddress, mux)
		},
		// 1.36, alpha. Its cycles of a whole group and the plugin's Permit would wait for each other.
		NativeGroups: func() bool { return utilfeature.DefaultFeatureGate.Enabled(features.GangScheduling) },
		Fence:        leads,
	}
	return app.WithPlugin(plugin.Name, factory.New)
}

// profiles serves Go's profiles unless kube-scheduler's configuration disables them, which is known after the server's start.
func profiles(enabled func() bool) http.Handler {
	mux := http.NewServeMux()
	httpserver.HandleProfiles(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !enabled() {
			http.Error(w, "profiles are disabled by kube-scheduler's configuration (enableProfiling)", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
