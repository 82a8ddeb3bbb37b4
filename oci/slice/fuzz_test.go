package slice

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzState: no state on stdin claims a slice that does not exist, or makes a file outside the state directory.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.2.0","id":"a","status":"creating","bundle":"/nowhere"}`), true)
	f.Add([]byte(`{"id":"../..","bundle":"/"}`), false)
	f.Add([]byte(`{`), false)
	f.Fuzz(func(t *testing.T, state []byte, claim bool) {
		dir := t.TempDir()
		action := "release"
		if claim {
			action = actionClaim
		}
		var stderr bytes.Buffer
		code := Main(t.Context(), []string{action, optionState + "=" + filepath.Join(dir, "state"), optionName + "=none"}, bytes.NewReader(state), &stderr)
		require.True(t, code == 1 || !claim)
		require.True(t, code == 1 || stderr.Len() == 0)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			require.Equal(t, "state", e.Name())
		}
	})
}

// FuzzRead: a slice that is read has the requested name.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"x","shares":[{"uuid":"GPU-a","memoryMiB":1,"cores":2}],"gpus":[{}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(Dir(dir, "x"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(Dir(dir, "x"), recordName), data, 0o600))
		if s, err := Read(dir, "x"); err == nil {
			require.Equal(t, "x", s.Name)
			_, _ = s.claim("c"), s.capacities()
		}
	})
}
