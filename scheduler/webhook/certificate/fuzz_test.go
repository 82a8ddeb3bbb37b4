package certificate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A Secret with arbitrary parts is fixed: the announced bundle trusts the served certificate.
func FuzzBundle(f *testing.F) {
	good, _ := next(f, Bundle{}, start)
	f.Add(good.Certs, good.Keys)
	f.Add(good.Keys, good.Certs)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), []byte("x"))
	f.Fuzz(func(t *testing.T, certs, keys []byte) {
		fixed, _ := next(t, Bundle{Certs: certs, Keys: keys}, start)
		require.NoError(t, trusts(fixed.Certs, serving(t, fixed, start), start))
	})
}
