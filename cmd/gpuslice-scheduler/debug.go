package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/internal/httpdoor"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/kube"
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
	extender.DebugPages(mux, e, find, nil)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(httpdoor.Limit(listener, httpdoor.Connections)); !errors.Is(err, http.ErrServerClosed) {
		d.log.Error("/debug/state and the page are no more served", "address", d.address, "error", err)
	}
}
