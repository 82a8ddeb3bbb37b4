package grant_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// A file of keys that is read verifies what its current key signs; errors repeat nothing of it.
func FuzzParseKeyring(f *testing.F) {
	f.Add([]byte("# new\n" + strings.Repeat("0123456789abcdef", 4) + "\n" + strings.Repeat("fedcba9876543210", 4) + "\n"))
	f.Add([]byte("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\r\n"))
	f.Add([]byte("00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ring, err := grant.ParseKeyring(data)
		if err != nil {
			require.Less(t, len(err.Error()), 200)
			for line := range strings.Lines(string(data)) {
				if line = strings.TrimSpace(line); len(line) > 40 {
					require.NotContains(t, err.Error(), line)
				}
			}
			return
		}
		signature, err := grant.Sign(ring.Current(), "u-1", "node-1", signedPayload)
		require.NoError(t, err)
		require.NoError(t, ring.Verify("u-1", "node-1", signedPayload, signature))
		require.ErrorIs(t, ring.Verify("u-2", "node-1", signedPayload, signature), grant.ErrSignature)
	})
}
