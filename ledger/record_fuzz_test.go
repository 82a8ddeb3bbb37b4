package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// A record that is read is of its directory's container, and what it reserves is valid.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"sequence":2,"containerID":"a","owner":"nri","container":"c","shares":[{"uuid":"GPU-0b5a4b1e-9cd6-4d2c-8f57-0d1f6e3c2a10","memoryMiB":1000,"cores":20}],"position":3}`))
	f.Add([]byte(`{"version":1,"sequence":18446744073709551615,"containerID":"a"}`))
	f.Add([]byte(`{"version":1,"containerID":"a","blocking":{"reason":"r"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data, "a")
		if err != nil {
			require.Nil(t, r)
			return
		}
		require.Equal(t, "a", r.ContainerID)
		if r.Blocking == nil {
			require.NoError(t, grant.ValidateShares(r.Shares))
		}
		again, err := r.encode()
		require.NoError(t, err)
		got, err := decodeRecord(again, "a")
		require.NoError(t, err)
		require.Equal(t, r.Shares, got.Shares)
	})
}
