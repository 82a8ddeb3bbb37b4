package audit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// With any content of the file, allowances can be set and saved afterwards.
func FuzzAllowed(f *testing.F) {
	file := filepath.Join(f.TempDir(), "audit-allowed.json")
	f.Add([]byte(`{"id":{"GPU-1":5}}`))
	f.Add([]byte(`{"id":null}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(file, data, 0o600))
		a, _ := openAllowed(file)
		require.NotNil(t, a)
		a.set("id", "GPU-1", 7)
		a.dirty = true
		require.NoError(t, a.keep())
		again, err := openAllowed(file)
		require.NoError(t, err)
		require.EqualValues(t, 7, again.bytes["id"]["GPU-1"])
		require.Equal(t, len(a.bytes), len(again.bytes))
	})
}
