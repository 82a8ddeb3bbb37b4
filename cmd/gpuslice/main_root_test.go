//go:build root

package main

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/ledger"
)

// Without the rights, the error names root, and nothing is changed.
func TestStatusOfAUser(t *testing.T) {
	dir, err := os.MkdirTemp("", "gs") // t.TempDir's parent has mode 0700
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711))
	open, closed := filepath.Join(dir, "open"), filepath.Join(dir, "closed")
	for _, path := range []string{open, closed} {
		ledger, err := ledger.Open(path)
		require.NoError(t, err)
		require.NoError(t, ledger.Close())
	}
	require.NoError(t, os.Chmod(closed, 0o700))
	for _, path := range []string{open, closed} {
		asUser(t, func() {
			status, out, stderr := gpuslice("status", "--state-dir", path)
			assert.Equal(t, exitFailed, status)
			assert.Empty(t, out)
			assert.Contains(t, stderr, "permission denied: run it as root")
		})
	}
}

// asUser calls fn with the file rights of a user without root.
func asUser(t *testing.T, fn func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		if err := syscall.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		fn()
		done <- nil
	}()
	require.NoError(t, <-done)
}
