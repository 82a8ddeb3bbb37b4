package atomicfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
)

func TestWrite(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"write": atomicfile.Write, "sync": atomicfile.WriteSync} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			for _, content := range []string{"first", "second", ""} {
				require.NoError(t, write(path, []byte(content), 0o644))
				got, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, content, string(got))
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.Equal(t, fs.FileMode(0o644), info.Mode())
			}
			requireNames(t, filepath.Dir(path), "file")
		})
	}
}

func TestWriteThatFailsLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o755))
	require.ErrorContains(t, atomicfile.Write(path, []byte("x"), 0o644), "write "+path)
	requireNames(t, dir, "file")
	require.ErrorIs(t, atomicfile.Write(filepath.Join(dir, "missing", "file"), nil, 0o644), fs.ErrNotExist)
}

// A process that is killed leaves its unfinished file.
func TestRemoveUnfinished(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".new-file.json.123", ".new-other.123", ".new-.1", ".new-x", "file.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, atomicfile.RemoveUnfinished(dir, func(file string) bool { return file == "file.json" }))
	requireNames(t, dir, ".new-.1", ".new-other.123", ".new-x", "file.json")
}

func requireNames(t *testing.T, dir string, want ...string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, want, got)
}
