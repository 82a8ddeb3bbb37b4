//go:build root

package slice

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/test/vgpufstest"
)

// A generation that was killed leaves hidden directories, with a file system mounted in them. The next one removes them, but
// not while a running one has the lock.
func TestSweep(t *testing.T) {
	ctx, state := context.Background(), t.TempDir()
	require.NoError(t, Sweep(ctx, state))
	require.NoDirExists(t, filepath.Join(state, dirsName), "nothing is made for it")

	vgpufstest.Unmount(t, state)
	for _, name := range []string{".new-123", ".old-small", "small"} {
		dir := Dir(state, name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, vgpufs.Mount(dir))
	}
	unlock, err := lock(ctx, state)
	require.NoError(t, err)
	busy, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, Sweep(busy, state), context.Canceled)
	require.DirExists(t, Dir(state, ".new-123"))
	unlock()

	require.NoError(t, Sweep(ctx, state))
	require.NoDirExists(t, Dir(state, ".new-123"))
	require.NoDirExists(t, Dir(state, ".old-small"))
	mounted, err := vgpufs.Mounted(Dir(state, "small"))
	require.NoError(t, err)
	require.True(t, mounted, "a slice stays")
}
