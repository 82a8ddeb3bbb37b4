package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/verification"
)

// The node's condition follows the report and the present driver.
func TestIsolation(t *testing.T) {
	dir := t.TempDir()
	c := isolation(dir, "580.1")
	require.Equal(t, []string{"GPUShareIsolationVerified", "Unknown", "NoReport"}, []string{c.Type, c.Status, c.Reason})
	at := time.Date(2026, 11, 27, 1, 2, 3, 0, time.UTC)
	rows := []verification.Row{{Check: "limiter", State: verification.OK}}
	require.NoError(t, verification.Write(dir, verification.Report{Driver: "580.1", At: at, Outcome: verification.OutcomeOf(rows), Rows: rows}))
	c = isolation(dir, "580.1")
	require.Equal(t, "True", c.Status)
	require.Equal(t, at, c.At)
	require.Contains(t, c.Message, "580.1")
	require.Equal(t, "DriverChanged", isolation(dir, "580.2").Reason)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "libvgpu-0123456789abcdef.so"), nil, 0o644))
	require.NoError(t, verification.Remove(dir))
	require.Equal(t, "NoReport", isolation(dir, "580.1").Reason)
	require.FileExists(t, filepath.Join(dir, "libvgpu-0123456789abcdef.so"))
}
