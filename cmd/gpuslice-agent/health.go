package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/internal/httpserver"
)

// condition is one of the agent's health. failure is nil while it holds.
type condition struct {
	name    string
	failure func() error
}

// healthServer answers /healthz (is the process of use, or should it be restarted?)
// and /readyz (is the node guarded right now?) with 200 or 503 and the reasons.
func healthServer(live, ready []condition) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(live))
	mux.HandleFunc("GET /readyz", answer(ready))
	return mux
}

func answer(conditions []condition) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var errs []error
		for _, c := range conditions {
			if err := c.failure(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
			}
		}
		if err := errors.Join(errs...); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// newServer serves whoever can reach its port: a client that says nothing, reads nothing or stays holds none of
// the agent's files and memory for long.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, MaxHeaderBytes: 64 << 10,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
}

// healthConnections are open at the same time to the health port. Each takes some 20 KiB.
const healthConnections = 1024

// newHealthServer answers one question for each connection, and waits seconds for it.
func newHealthServer(handler http.Handler) *http.Server {
	s := newServer(handler)
	s.SetKeepAlivesEnabled(false)
	s.MaxHeaderBytes = 8 << 10
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout = 3*time.Second, 3*time.Second, 10*time.Second
	return s
}

// serveHealth serves until ctx ends. Pods reach the port, and the kubelet ends an agent that it has no answer of: who opens
// as many connections as there may be loses his oldest to the kubelet's.
func serveHealth(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return serveBy(ctx, newHealthServer(handler), httpserver.Newest(listener, healthConnections))
}

// serve serves until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return serveBy(ctx, newServer(handler), listener)
}

func serveBy(ctx context.Context, server *http.Server, listener net.Listener) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(grace)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped
	return nil
}
