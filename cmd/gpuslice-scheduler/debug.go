package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/page"
)

// debugServer answers /debug/state, which pods hold what of which cards, / with the same
// as a page, and /debug/explain, why a pod is where it is. kube-scheduler's own port takes no pages of others.
type debugServer struct {
	address string // empty: none
	log     *slog.Logger
}

// run serves until ctx ends. That it can't is logged: pods are placed all the same.
func (d *debugServer) run(ctx context.Context, e *engine.Engine, cluster *kube.Feeding) {
	if d.address == "" {
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.address)
	if err != nil {
		d.log.Error("/debug/state and the page are not served", "address", d.address, "error", err)
		return
	}
	d.serve(ctx, listener, e, cluster.Find)
}

func (d *debugServer) serve(ctx context.Context, listener net.Listener, e *engine.Engine, find extender.Find) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, r *http.Request) { extender.DebugState(e, w, r) })
	mux.HandleFunc("GET /debug/explain", func(w http.ResponseWriter, r *http.Request) { extender.DebugExplain(e, find, w, r) })
	mux.Handle("GET /{$}", page.Handler(e, nil))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		d.log.Error("/debug/state and the page are no more served", "address", d.address, "error", err)
	}
}
