package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/monitor/view"
)

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
