package certificate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A Secret whose parts somebody has written is fixed: what is served from it is trusted by what is announced.
func FuzzBundle(f *testing.F) {
	good, _ := next(f, Bundle{}, start)
	f.Add(good.Trusted, good.AuthorityKey, good.Cert, good.Key)
	f.Add(good.Cert, good.Key, good.Trusted, good.AuthorityKey)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), []byte("x"), []byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, trusted, authorityKey, cert, key []byte) {
		for _, found := range parseAuthorities(trusted) {
			require.True(t, found.IsCA)
			if own, err := parseAuthorityKey(authorityKey, found); err == nil {
				require.True(t, own.PublicKey.Equal(found.PublicKey))
			}
		}
		mended, _ := next(t, Bundle{Trusted: trusted, AuthorityKey: authorityKey, Cert: cert, Key: key}, start)
		require.NoError(t, trusts(mended.Trusted, mended, start))
	})
}
