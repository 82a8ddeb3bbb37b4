package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// A server is ended by its own failure, not by its own end, and not by what became of an earlier one.
func TestErrorsOfServers(t *testing.T) {
	d := New(Config{Log: slog.New(slog.DiscardHandler)})
	earlier, s := newServer(d), newServer(d)
	for range 2 { // both sockets
		earlier.HandleError(t.Context(), errors.New("accept"), "failed")
	}
	require.Len(t, earlier.failed, 1)
	for _, err := range []error{context.Canceled, fmt.Errorf("serve: %w", grpc.ErrServerStopped), fmt.Errorf("invalid: %w", kubeletplugin.ErrRecoverable)} {
		s.HandleError(t.Context(), err, "ended")
	}
	require.Empty(t, s.failed)
	s.HandleError(t.Context(), errors.New("accept"), "the server failed")
	require.EqualError(t, <-s.failed, "the server failed: accept")
}
