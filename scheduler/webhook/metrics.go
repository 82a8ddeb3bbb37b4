package webhook

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpuslice/gpuslice/scheduler/metrics"
)

// handler returns Handler and /metrics.
func (o *Options) handler(ready func() error) http.Handler {
	counters := metrics.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(counters, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/", Handler(o.Rules, ready, counters, o.Log))
	return mux
}
