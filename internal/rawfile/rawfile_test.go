package rawfile

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadsAsOsDoes(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{0, 1, 511, 512, 513, 100_000} {
		path := filepath.Join(dir, "file")
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600))
		requireSame(t, path)
	}
	requireSame(t, "/proc/self/mountinfo") // has size 0
	requireSame(t, filepath.Join(dir, "none"))
	requireSame(t, filepath.Join(dir, "file/below"))
	requireSame(t, dir)
}

func requireSame(t *testing.T, path string) {
	t.Helper()
	want, wantErr := os.ReadFile(path)
	got, gotErr := Read(path)
	require.Equal(t, wantErr, gotErr)
	if wantErr != nil {
		return
	}
	require.Equal(t, string(want), string(got))
}

func TestWritesAsOsDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, Write(path, []byte("a longer text"), 0o640))
	require.NoError(t, Write(path, []byte("text"), 0o600))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "text", string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())

	below := filepath.Join(path, "below")
	require.Equal(t, os.WriteFile(below, nil, 0o600), Write(below, nil, 0o600))
	require.ErrorContains(t, Write("/dev/full", []byte("x"), 0o600), "no space left")
}
