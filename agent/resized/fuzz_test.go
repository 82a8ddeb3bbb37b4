package resized

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// A stored grant is either valid or not read.
func FuzzRead(f *testing.F) {
	path := filepath.Join(f.TempDir(), "uid.json")
	one := `{"version":1,"generation":2,"node":"n","containers":{"main":[{"uuid":"GPU-00000000-0000-4000-8000-000000000001","memoryMiB":1,"cores":1}]}}`
	data, err := json.Marshal(kept{Grant: one, Signature: "v1:a:b"})
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[:40])
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		one, err := read(path)
		if err != nil {
			return
		}
		again, err := grant.DecodeGrant(one.Grant)
		require.NoError(t, err)
		require.Equal(t, again, one.pod)
	})
}
