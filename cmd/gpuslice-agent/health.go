package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
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

// serve serves until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := newServer(handler)
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
