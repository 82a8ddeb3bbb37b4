// Command gpuslice-scheduler is kube-scheduler with the plugin GPUSlice, and with the subcommands
// extender and webhook. It is a separate module because it imports k8s.io/kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	compmetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/features"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
)

const manual = `gpuslice-scheduler is kube-scheduler with the plugin GPUSlice, which assigns shares of
GPUs to pods. It has kube-scheduler's flags and this one:

  --debug-address   serve / (a page of the cluster's GPUs, their pods and pending pods) and
                    /debug/state (the same as text or JSON) on this host:port, over plain
                    HTTP (default 127.0.0.1:10261); empty: disabled

install/scheduler/config.yaml, a configuration of kube-scheduler (--config), enables the
plugin. Without it, gpuslice-scheduler is a plain kube-scheduler.

  gpuslice-scheduler extender   for a kube-scheduler that cannot be replaced
  gpuslice-scheduler webhook    completes and validates new pods`

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	var debugAddress string
	root := app.NewSchedulerCommand(withPlugin(&debugAddress))
	root.Use = "gpuslice-scheduler"
	root.Short = "kube-scheduler with GPU memory and compute time"
	root.Long = manual
	root.Flags().StringVar(&debugAddress, "debug-address", "127.0.0.1:10261", "serve / and /debug/state on this host:port; empty: disabled")
	root.AddCommand(subcommands()...)
	return root
}

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
			extender.HandleDebug(mux, e, cluster.Find, cluster.Objects, nil)
			extender.ServeDebug(ctx, log, *debugAddress, mux)
		},
		// 1.36, alpha. Its cycles of a whole group and the plugin's Permit would wait for each other.
		NativeGroups: func() bool { return utilfeature.DefaultFeatureGate.Enabled(features.GangScheduling) },
		CheckLeader:  (&leader{gatherer: legacyregistry.DefaultGatherer}).check,
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
