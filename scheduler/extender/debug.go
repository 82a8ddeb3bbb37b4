package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/page"
)

// Find returns the pod of that name, or a NotFound error of the API server.
type Find func(namespace, name string) (*scheduler.Pod, error)

// HandleDebug registers /, /debug/state and /debug/explain, read-only and with limited concurrency.
func HandleDebug(mux *http.ServeMux, e *engine.Engine, find Find, ready func() error) {
	limited := func(pattern string, h http.Handler) { mux.Handle(pattern, httpserver.Few(httpserver.InFlight, h)) }
	limited("GET /debug/state", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { debugState(e, w, r) }))
	limited("GET /debug/explain", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { debugExplain(e, find, w, r) }))
	limited("GET /{$}", page.Handler(e, ready))
}

// debugState supports ?node=NAME and ?format=json.
func debugState(e *engine.Engine, w http.ResponseWriter, r *http.Request) {
	state := e.State(r.URL.Query().Get("node"))
	if r.URL.Query().Get("format") == "json" {
		writeJSON(w, state)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = state.WriteText(w)
}

func debugExplain(e *engine.Engine, find Find, w http.ResponseWriter, r *http.Request) {
	namespace, name := r.URL.Query().Get("namespace"), r.URL.Query().Get("pod")
	if namespace == "" || name == "" {
		http.Error(w, "no pod given: use /debug/explain?namespace=NAMESPACE&pod=POD", http.StatusBadRequest)
		return
	}
	pod, err := find(namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		http.Error(w, fmt.Sprintf("pod %s/%s not found among pending and running pods", namespace, name), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		writeJSON(w, e.Explain(pod))
	}
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // fails if the client is gone
}

// ServeDebug serves at address, if any, until ctx ends. Errors are only logged.
func ServeDebug(ctx context.Context, log *slog.Logger, address string, handler http.Handler) {
	if address == "" {
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		log.Error("failed to serve the debug address", "address", address, "error", err)
		return
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(httpserver.Limit(listener, httpserver.Connections)); !errors.Is(err, http.ErrServerClosed) {
		log.Error("the debug address is no longer served", "address", address, "error", err)
	}
}
