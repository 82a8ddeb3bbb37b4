package certificate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A Secret with arbitrary parts is fixed: the announced bundle trusts the served certificate.
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
		fixed, _ := next(t, Bundle{Trusted: trusted, AuthorityKey: authorityKey, Cert: cert, Key: key}, start)
		require.NoError(t, trusts(fixed.Trusted, fixed, start))
	})
}
