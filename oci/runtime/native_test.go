package ociruntime

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci/request"
)

// A probe that failed is repeated, one that succeeded is not.
func TestProbeNativeKeepsOnlySuccess(t *testing.T) {
	dir := t.TempDir()
	config := request.Config{StateDir: dir}
	self, calls, status := filepath.Join(dir, "gpuslice-runtime"), filepath.Join(dir, "calls"), filepath.Join(dir, "status")
	write(t, filepath.Join(dir, "gpuslice"), fmt.Sprintf("#!/bin/sh\necho call >>%s; echo reason >&2; exit $(cat %s)\n", calls, status), 0o755)
	write(t, status, "1", 0o644)
	require.ErrorContains(t, ProbeNative(t.Context(), config, self), "reason")
	write(t, status, "0", 0o644)
	require.NoError(t, ProbeNative(t.Context(), config, self))
	require.NoError(t, ProbeNative(t.Context(), config, self))
	require.Equal(t, "call\ncall", read(t, calls))
}
