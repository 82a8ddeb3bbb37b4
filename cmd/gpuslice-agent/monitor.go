package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/page"
	"github.com/gpuslice/gpuslice/monitor/view"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nvidia"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

// monitor is what the agent shows of its node.
type monitor struct {
	// registry: register collectors before serve.
	registry *prometheus.Registry
	// nri counts what the NRI plugin does.
	nri      *metrics.NRI
	live     *nodeview.Live
	legacy   []metrics.Legacy
	auditor  *audit.Auditor // nil: no audit
	listener net.Listener   // nil: nothing is shown
}

// newMonitor makes the monitor, and opens its address. What it shows comes with serve.
func newMonitor(o *options, store *ledger.Ledger, inventory *nvidia.Cache, p *publisher, use func() *feedback.Use, holds func() []feedback.Hold, log *slog.Logger) (*monitor, error) {
	listener, err := listen("metrics-address", o.MetricsAddress)
	if err != nil {
		return nil, err
	}
	registry := metrics.NewRegistry(version.String())
	m := &monitor{
		registry: registry,
		nri:      metrics.NewNRI(registry, nriplugin.Events, nriplugin.Reasons()),
		listener: listener,
		live: nodeview.NewLive(nodeview.LiveConfig{
			Snapshot: store.Snapshot, Dir: store.Dir, Node: p.file, Cordoned: func() ([]string, error) { return ledger.Cordoned(o.StateDir) }, Telemetry: inventory.Telemetry, Use: use, Holds: holds, Log: log,
		}),
	}
	for _, program := range o.LegacyMetrics {
		m.legacy = append(m.legacy, metrics.Legacy(program))
	}
	return m, nil
}

// serve shows the node until ctx ends.
func (m *monitor) serve(ctx context.Context, tasks *errgroup.Group, plugin *nriplugin.Plugin) {
	if m.listener == nil {
		return
	}
	tasks.Go(func() error { m.live.Run(ctx); return nil })
	tasks.Go(func() error {
		return serve(ctx, httpserver.Limit(m.listener, httpserver.Connections), m.handler(plugin))
	})
}

func (m *monitor) handler(plugin *nriplugin.Plugin) http.Handler {
	m.registry.MustRegister(metrics.NewNode(metrics.NodeConfig{
		View: m.live.Read, Connected: func() bool { return plugin.Ready() == nil }, Orphans: plugin.Gone, Legacy: m.legacy,
	}))
	return metrics.NewHandler(metrics.HandlerConfig{
		Registry: m.registry, View: m.read, GPUManagerPath: slices.Contains(m.legacy, metrics.GPUManager),
		Page: page.Handler(m.read),
	})
}

// read returns the node with the violations that last.
func (m *monitor) read(ctx context.Context) (view.Node, error) {
	n, err := m.live.Read(ctx)
	if m.auditor == nil {
		return n, err
	}
	for _, v := range m.auditor.Violations() {
		container := v.Container.Name
		if v.Container.Pod != "" {
			container = v.Container.Namespace + "/" + v.Container.Pod + "/" + container
		}
		n.Violations = append(n.Violations, view.Violation{Kind: string(v.Kind), Container: container, Detail: v.Detail, Since: v.Since})
	}
	return n, err
}

// reportBarrier warns if NVIDIA's runtime has no gpuslice-runtime in front of it: then every pod
// gets GPUs while the agent does not run.
func reportBarrier(env func(string) string, registry prometheus.Registerer, log *slog.Logger) {
	if env(api.EnvVisibleDevices) == "" {
		return
	}
	there := env(ociruntime.BarrierEnv) == "1"
	metrics.RegisterBarrier(registry, there)
	if !there {
		log.Warn("while this agent does not run, pods without a grant can get whole GPUs: NVIDIA's container runtime has no gpuslice-runtime in front of it; " +
			"restart containerd on the node if the barrier was installed since, otherwise run `gpuslice install containerd` there first (gpuslice doctor checks it)")
	}
}
