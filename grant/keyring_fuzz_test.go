package grant_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/granttest"
)

// If ParseSigningKeys accepts a file, its key signs what its public keys verify. Errors contain nothing of a key.
func FuzzParseSigningKeys(f *testing.F) {
	f.Add([]byte("# new\n" + granttest.PrivateKeys("two", "one")))
	f.Add([]byte(granttest.PublicKeys("one")))
	f.Add([]byte(strings.Repeat("0123456789abcdef", 4)))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, ring, err := grant.ParseSigningKeys(data)
		if err != nil {
			require.Less(t, len(err.Error()), 400)
			for line := range strings.Lines(string(data)) {
				if line = strings.TrimSpace(line); len(line) > 60 {
					require.NotContains(t, err.Error(), line)
				}
			}
			return
		}
		signature, err := key.Sign("u-1", "node-1", signedPayload)
		require.NoError(t, err)
		require.NoError(t, ring.Verify("u-1", "node-1", signedPayload, signature))
		require.ErrorIs(t, ring.Verify("u-2", "node-1", signedPayload, signature), grant.ErrSignature)
		_, err = grant.ParsePublicKeys(data)
		require.Error(t, err, "a node accepts no private key")
	})
}

// If ParsePublicKeys accepts a file, it has one or two keys.
func FuzzParsePublicKeys(f *testing.F) {
	f.Add([]byte("# new\n" + granttest.PublicKeys("two", "one")))
	f.Add([]byte(granttest.PrivateKeys("one")))
	f.Fuzz(func(t *testing.T, data []byte) {
		ring, err := grant.ParsePublicKeys(data)
		if err != nil {
			require.Less(t, len(err.Error()), 400)
			return
		}
		keys := len(strings.Fields(ring.String()))
		require.True(t, keys == 1 || keys == 2, "%d keys", keys)
	})
}
