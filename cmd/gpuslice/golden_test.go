package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// shows runs a command that must succeed, and returns what it prints.
func shows(t *testing.T, args ...string) string {
	t.Helper()
	status, out, stderr := gpuslice(args...)
	require.Equal(t, exitDone, status, stderr)
	require.Empty(t, stderr)
	return out
}
