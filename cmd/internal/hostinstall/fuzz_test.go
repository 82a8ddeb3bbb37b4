package hostinstall

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The record of what was changed is written and read as it is.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"engine":"docker","files":[{"path":"/etc/docker/daemon.json","format":"json","seed":"","own":["runtimes","gpuslice"],"ownTables":1,"changes":[{"key":["a"],"set":"1"}]}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			return
		}
		written, err := r.encode()
		require.NoError(t, err)
		again, err := decodeRecord(written)
		require.NoError(t, err)
		twice, err := again.encode()
		require.NoError(t, err)
		require.Equal(t, string(written), string(twice))
	})
}
