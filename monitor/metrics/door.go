package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// DoorConfig is what the agent shows by HTTP. Nothing of it is a secret: whoever reaches the
// port may see it.
type DoorConfig struct {
	Registry *prometheus.Registry
	Gatherer *Gatherer
	View     func(context.Context) (view.Node, error)
	// Page is shown at /; nil: nothing is.
	Page http.Handler
}

// NewRegistry makes the registry of an agent, with what every program tells of itself.
func NewRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gpuslice_build_info", Help: "1, for its labels.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// NewDoor serves /metrics, /api/v1/view and, where there is one, the page.
func NewDoor(c DoorConfig) http.Handler {
	mux := http.NewServeMux()
	scraped := promhttp.HandlerForTransactional(
		prometheus.NewMultiTRegistry(prometheus.ToTransactionalGatherer(c.Registry), c.Gatherer),
		// What can be told is told, also when the ledger can't be read.
		promhttp.HandlerOpts{Registry: c.Registry, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: httpserver.InFlight},
	)
	mux.Handle("GET /metrics", scraped)
	if c.Gatherer.tells(GPUManager) {
		mux.Handle("GET /metric", scraped)
	}
	mux.Handle("GET /api/v1/view", httpserver.Few(httpserver.InFlight, http.HandlerFunc(c.view)))
	if c.Page != nil {
		mux.Handle("GET /", httpserver.Few(httpserver.InFlight, c.Page))
	}
	return mux
}

// view answers with the node as JSON.
func (c *DoorConfig) view(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	node, err := c.View(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	data, err := json.Marshal(node)
	if err != nil {
		http.Error(w, fmt.Sprintf("the node as JSON: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n')) // who has hung up needs no answer
}
