// Package metrics exports a node's GPUs, containers and agent counters to Prometheus.
// Node reads GPUs and containers at each scrape, once for all of its metrics. NRI
// counts over time. NewHandler serves the registry. docs/METRICS.md lists all metrics.
package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// readTimeout is how long a scrape waits for the ledger's lock.
const readTimeout = 5 * time.Second

type NodeConfig struct {
	View func(context.Context) (view.Node, error)
	// Connected reports whether the agent is connected to the container runtime.
	Connected func() bool
	// Orphans returns the IDs of containers that are gone and still have a claim.
	Orphans func() []string
	// Legacy adds the names and units of other programs.
	Legacy []Legacy
}

// Node is the prometheus.Collector of a node's GPUs and containers.
type Node struct {
	config   NodeConfig
	families []family
	descs    []*prometheus.Desc
}

// NewNode returns a collector that reads the node at each scrape.
func NewNode(c NodeConfig) *Node {
	n := &Node{config: c, families: familiesWith(c.Legacy)}
	for _, f := range n.families {
		n.descs = append(n.descs, prometheus.NewDesc(f.Name, f.Help, f.Labels, nil))
	}
	return n
}

func (n *Node) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range n.descs {
		to <- desc
	}
}

func (n *Node) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	node, err := n.config.View(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(n.descs[0], fmt.Errorf("read GPUs and containers of the node: %w", err))
		return
	}
	r := &reading{node: node, connected: n.config.Connected()}
	orphans := n.config.Orphans()
	for _, c := range r.active() {
		if slices.Contains(orphans, c.ContainerID) {
			r.orphans++
		}
	}
	for i := range n.families {
		n.families[i].collect(r, n.descs[i], to)
	}
}

func (f *family) collect(r *reading, desc *prometheus.Desc, to chan<- prometheus.Metric) {
	kind := prometheus.GaugeValue
	if f.Counter {
		kind = prometheus.CounterValue
	}
	rows := f.rows(r)
	values := make([]string, len(f.labels)) // NewConstMetric copies them
	for i := range rows {
		value, known := f.value(&rows[i])
		if !known {
			continue
		}
		for j, l := range f.labels {
			values[j] = l.value(r, &rows[i])
		}
		metric, err := prometheus.NewConstMetric(desc, kind, value, values...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(desc, err)
		}
		to <- metric
	}
}

type reading struct {
	node      view.Node
	connected bool
	orphans   int
}

func (r *reading) active() (all []*view.Container) {
	for i := range r.node.Containers {
		if c := &r.node.Containers[i]; c.State == string(ledger.StateActive) {
			all = append(all, c)
		}
	}
	return all
}

// HandlerConfig configures NewHandler. Everything it serves is public to all that reach the port.
type HandlerConfig struct {
	Registry *prometheus.Registry
	View     func(context.Context) (view.Node, error)
	// GPUManagerPath serves the metrics on /metric too, as gpu-manager does.
	GPUManagerPath bool
	// Page is served on /; nil: no page.
	Page http.Handler
}

// NewRegistry returns the registry of an agent, with the metrics of its build and its process.
func NewRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "gpuslice_build_info", Help: "Build information; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}).Set(1)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// NewHandler serves /metrics, /api/v1/view and the page.
func NewHandler(c HandlerConfig) http.Handler {
	mux := http.NewServeMux()
	// With an unreadable ledger the other metrics are still exported.
	scrape := promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{Registry: c.Registry, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: httpserver.InFlight})
	mux.Handle("GET /metrics", scrape)
	if c.GPUManagerPath {
		mux.Handle("GET /metric", scrape)
	}
	mux.Handle("GET /api/v1/view", httpserver.Few(httpserver.InFlight, http.HandlerFunc(c.view)))
	if c.Page != nil {
		mux.Handle("GET /", httpserver.Few(httpserver.InFlight, c.Page))
	}
	return mux
}

func (c *HandlerConfig) view(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	node, err := c.View(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	data, err := json.Marshal(node)
	if err != nil {
		http.Error(w, fmt.Sprintf("encode the node as JSON: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n'))
}

// RegisterBarrier registers the metric of the barrier: gpuslice-runtime in front of NVIDIA's
// container runtime keeps GPUs closed while the agent does not run.
func RegisterBarrier(registry prometheus.Registerer, installed bool) {
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "gpuslice_barrier",
		Help: "1 if gpuslice-runtime was in front of NVIDIA's container runtime when the agent's container was created, otherwise 0. Only if NVIDIA's runtime gives the agent its GPUs.",
	}).Set(boolean(installed))
}

// NRI counts the requests of the container runtime.
type NRI struct {
	requests *prometheus.HistogramVec
	refusals *prometheus.CounterVec
}

// NewNRI registers the counters. Each known event and reason starts at 0, so that
// Prometheus sees the first increase.
func NewNRI(registry prometheus.Registerer, events, reasons []string) *NRI {
	register := promauto.With(registry)
	n := &NRI{
		requests: register.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuslice_nri_request_duration_seconds",
			Help: "Time to answer a request of the container runtime.",
			// 50 µs to 3.3 s: the runtime waits 2 s at most.
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 17),
		}, []string{"event"}),
		refusals: register.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuslice_refusals_total",
			Help: "Refused containers by reason.",
		}, []string{"reason"}),
	}
	for _, event := range events {
		n.requests.WithLabelValues(event)
	}
	for _, reason := range reasons {
		n.refusals.WithLabelValues(reason)
	}
	return n
}

// Handled counts an answered request.
func (n *NRI) Handled(event string, took time.Duration) {
	n.requests.WithLabelValues(event).Observe(took.Seconds())
}

func (n *NRI) Refused(reason string) { n.refusals.WithLabelValues(reason).Inc() }
