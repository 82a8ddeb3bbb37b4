//go:build root

package hostinstall

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

func TestRepairStateDirMode(t *testing.T) {
	h := newTestHost(t)
	dir := h.path("/run/gpuslice")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, os.Chown(dir, 1000, -1))
	mode := func() os.FileMode {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	o := h.repairs("")
	o.DryRun = true
	want := "-/run/gpuslice: owner 1000, mode 0777\n+/run/gpuslice: owner 0, mode 0711\n"
	assert.Equal(t, want+"nothing was changed (--dry-run)\n", h.repair(doctor.RepairStateDirMode, o))
	assert.Equal(t, os.FileMode(0o777), mode())
	o.DryRun = false
	assert.Equal(t, want, h.repair(doctor.RepairStateDirMode, o))
	assert.Equal(t, os.FileMode(0o711), mode())

	// A link that leads out of the host is followed inside its root, or not at all.
	outside := t.TempDir()
	require.NoError(t, os.Chmod(outside, 0o777))
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.Symlink(outside, dir))
	require.Error(t, Repair(t.Context(), doctor.RepairStateDirMode, o, &strings.Builder{}))
	info, err := os.Stat(outside)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o777), info.Mode().Perm())
}
