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

type condition struct {
	name    string
	failure func() error
}

// healthServer serves /healthz and /readyz with 200, or 503 and the reasons.
func healthServer(live, ready []condition) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(live))
	mux.HandleFunc("GET /readyz", answer(ready))
	return mux
}

func answer(conditions []condition) http.HandlerFunc {
	return httpserver.Check(func() error {
		var errs []error
		for _, c := range conditions {
			if err := c.failure(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
			}
		}
		return errors.Join(errs...)
	})
}

// newServer limits the time of slow and idle clients.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, MaxHeaderBytes: 64 << 10,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
}

// healthConnections is the limit of open connections of the health port, 20 KiB each.
const healthConnections = 1024

// newHealthServer closes connections after each response.
func newHealthServer(handler http.Handler) *http.Server {
	s := newServer(handler)
	s.SetKeepAlivesEnabled(false)
	s.MaxHeaderBytes = 8 << 10
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout = 3*time.Second, 3*time.Second, 10*time.Second
	return s
}

// serveHealth closes the oldest connection for a new one, so that pods can't block the kubelet,
// which would restart the agent.
func serveHealth(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return serveBy(ctx, newHealthServer(handler), httpserver.Newest(listener, healthConnections))
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return serveBy(ctx, newServer(handler), listener)
}

func serveProfiles(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	httpserver.HandleProfiles(mux)
	s := newServer(mux)
	s.WriteTimeout = 2 * time.Minute // a profile takes 30 s, and pprof refuses one that takes longer than this
	return serveBy(ctx, s, httpserver.Limit(listener, httpserver.Connections))
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
