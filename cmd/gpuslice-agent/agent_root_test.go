//go:build root

package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestPrepareStateDir(t *testing.T) {
	silent := slog.New(slog.DiscardHandler)
	t.Run("makes it, and others may only pass", func(t *testing.T) {
		defer syscall.Umask(syscall.Umask(0))
		dir := filepath.Join(t.TempDir(), "a", "b")
		unlock, err := prepareStateDir(dir, silent)
		require.NoError(t, err)
		defer unlock()
		info, err := os.Stat(dir)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o711), info.Mode().Perm())
	})
	t.Run("others may only pass through what the kubelet has made, too", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "volume")
		require.NoError(t, os.Mkdir(dir, 0o755))
		unlock, err := prepareStateDir(dir, silent)
		require.NoError(t, err)
		defer unlock()
		info, err := os.Stat(dir)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o711), info.Mode().Perm())
	})
	t.Run("one agent at a time", func(t *testing.T) {
		dir := t.TempDir()
		unlock, err := prepareStateDir(dir, silent)
		require.NoError(t, err)
		_, err = prepareStateDir(dir, silent)
		require.EqualError(t, err, "--state-dir "+dir+": in use by another gpuslice-agent: stop it first")
		unlock()
		unlock, err = prepareStateDir(dir, silent)
		require.NoError(t, err)
		unlock()
	})
	t.Run("not a directory", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, err := prepareStateDir(file, silent)
		require.ErrorContains(t, err, "--state-dir")
		require.ErrorIs(t, err, unix.ENOTDIR)
	})
	t.Run("read-only", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=1m"))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		for _, path := range []string{dir, filepath.Join(dir, "run")} {
			_, err := prepareStateDir(path, silent)
			require.ErrorContains(t, err, "--state-dir")
			require.ErrorIs(t, err, unix.EROFS)
		}
	})
	t.Run("a disk is warned of, a tmpfs is not", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		for path, want := range map[string]bool{dir: false, shortDir(t): !onTmpfs(t, os.TempDir())} {
			log := &logBuffer{}
			unlock, err := prepareStateDir(path, slog.New(slog.NewTextHandler(log, nil)))
			require.NoError(t, err)
			unlock()
			assert.Equal(t, want, bytes.Contains([]byte(log.String()), []byte("not on a tmpfs")), path)
		}
	})
}

func onTmpfs(t *testing.T, dir string) bool {
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &fs))
	return fs.Type == unix.TMPFS_MAGIC
}
