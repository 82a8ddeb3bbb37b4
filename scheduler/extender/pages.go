package extender

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/internal/httpserver"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/page"
)

// Pages are what people look at and `gpuslice explain` asks: /debug/state, /debug/explain, and / with the same as a
// page. They change nothing, and may have an address of their own, which more can reach than a scheduler's calls. A
// few of each are answered at the same time, for each costs a look at the whole cluster.
func Pages(mux *http.ServeMux, e *engine.Engine, find Find, ready func() error) {
	few := func(pattern string, h http.Handler) { mux.Handle(pattern, httpserver.Few(httpserver.InFlight, h)) }
	few("GET /debug/state", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { debugState(e, w, r) }))
	few("GET /debug/explain", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { debugExplain(e, find, w, r) }))
	few("GET /{$}", page.Handler(e, ready))
}

// debugState answers with an engine's state for people, or with ?format=json for programs; ?node=NAME is of that node alone.
func debugState(e *engine.Engine, w http.ResponseWriter, r *http.Request) {
	state := e.State(r.URL.Query().Get("node"))
	if r.URL.Query().Get("format") == "json" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state) // whoever asked has gone
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = state.WriteText(w)
}

// ServePages serves what only tells at address, until ctx ends; an empty address is nowhere. That it can't is logged:
// pods are placed all the same.
func ServePages(ctx context.Context, log *slog.Logger, address string, handler http.Handler) {
	if address == "" {
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		log.Error("/debug/state and the page are not served", "address", address, "error", err)
		return
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(httpserver.Limit(listener, httpserver.Connections)); !errors.Is(err, http.ErrServerClosed) {
		log.Error("/debug/state and the page are no more served", "address", address, "error", err)
	}
}
