package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	names = []string{"gpuslice-webhook.kube-system.svc", "gpuslice-webhook.kube-system.svc.cluster.local"}
)

func next(t testing.TB, b Bundle, now time.Time) (Bundle, string) {
	t.Helper()
	got, reason, err := b.Next(now, names)
	require.NoError(t, err)
	return got, reason
}

// trusts is what an API server checks that has this caBundle.
func trusts(caBundle []byte, served *tls.Certificate, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caBundle)
	_, err := served.Leaf.Verify(x509.VerifyOptions{DNSName: names[0], Roots: roots, CurrentTime: now})
	return err
}

func serving(t testing.TB, b Bundle, now time.Time) *tls.Certificate {
	t.Helper()
	pair, err := b.Serving(names[0], now)
	require.NoError(t, err)
	return pair
}

func TestNextOfEmptyBundle(t *testing.T) {
	b, reason := next(t, Bundle{}, start)
	require.Contains(t, reason, "there is no usable one")
	require.NoError(t, trusts(b.Certs, serving(t, b, start), start))
	require.NoError(t, trusts(b.Certs, serving(t, b, start), start.Add(-backdate+time.Minute)), "a clock that is behind")
	again, reason := next(t, b, start.Add(time.Minute))
	require.Empty(t, reason)
	require.Equal(t, b, again)

	_, _, err := Bundle{}.Next(start, nil)
	require.ErrorContains(t, err, "set the webhook's Service")
	_, err = Bundle{}.Serving(names[0], start)
	require.Error(t, err)
}

func TestNextFixes(t *testing.T) {
	whole, _ := next(t, Bundle{}, start)
	other, _ := next(t, Bundle{}, start)
	for name, tc := range map[string]struct {
		spoil func(*Bundle)
		want  string
		// same: no new certificate is needed.
		same bool
	}{
		"no certificate":        {func(b *Bundle) { b.Certs = nil }, "no usable one", false},
		"no key":                {func(b *Bundle) { b.Keys = nil }, "no usable one", false},
		"another's key":         {func(b *Bundle) { b.Keys = other.Keys }, "no usable one", false},
		"another's certificate": {func(b *Bundle) { b.Certs = other.Certs }, "no usable one", false},
		"no PEM":                {func(b *Bundle) { b.Certs = []byte("x") }, "no usable one", false},
		"a certificate without a key": {func(b *Bundle) {
			b.Certs = slices.Concat(other.Certs, b.Certs)
		}, "unreadable", true},
		"an unreadable certificate": {func(b *Bundle) {
			b.Certs = append(b.Certs, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"...)
		}, "unreadable", true},
	} {
		t.Run(name, func(t *testing.T) {
			b := Bundle{slices.Clone(whole.Certs), whole.Keys}
			tc.spoil(&b)
			got, reason := next(t, b, start)
			require.Contains(t, reason, tc.want)
			require.NoError(t, trusts(got.Certs, serving(t, got, start), start))
			require.Equal(t, tc.same, string(whole.Certs) == string(got.Certs))
		})
	}
}

// A further name is served when API servers trust its certificate; the first name at once.
func TestNextForOtherNames(t *testing.T) {
	b, _ := next(t, Bundle{}, start)
	more := append(slices.Clone(names), "127.1.2.3", "another.svc")
	renamed, reason, err := b.Next(start, more)
	require.NoError(t, err)
	require.Contains(t, reason, "127.1.2.3")
	require.NoError(t, trusts(b.Certs, serving(t, renamed, start), start))
	pair := serving(t, renamed, start.Add(settle))
	require.NoError(t, trusts(renamed.Certs, pair, start))
	require.NoError(t, pair.Leaf.VerifyHostname("127.1.2.3"))
	require.NoError(t, pair.Leaf.VerifyHostname("another.svc"))

	again, reason := next(t, renamed, start)
	require.Empty(t, reason, "a replica with fewer names accepts the certificate")
	require.Equal(t, renamed, again)

	moved, _, err := b.Next(start, []string{"moved.svc"})
	require.NoError(t, err)
	pair, err = moved.Serving("moved.svc", start)
	require.NoError(t, err)
	require.NoError(t, pair.Leaf.VerifyHostname("moved.svc"))
}

// TestNextOverTheYears: an API server and a replica that both learn late of every change
// trust and serve what goes together, all the time, through every renewal.
func TestNextOverTheYears(t *testing.T) {
	const late = 2 // looks
	type look struct {
		bundle Bundle
		served *tls.Certificate
	}
	b, _ := next(t, Bundle{}, start)
	history := slices.Repeat([]look{{b, serving(t, b, start)}}, late+1)
	certificates := map[string]bool{}
	quiet := 0 // looks since the last change
	for now := start; now.Before(start.AddDate(25, 0, 0)); {
		var reason string
		if b, reason = next(t, b, now); reason != "" {
			t.Log(now.Format(time.DateTime), reason)
			quiet = 0
		}
		served := serving(t, b, now)
		history = append(history[1:], look{b, served})
		for back := range late + 1 {
			require.NoError(t, trusts(history[back].bundle.Certs, served, now), "an API server that is %d looks late", back)
			require.NoError(t, trusts(b.Certs, history[back].served, now), "a replica that is %d looks late", back)
		}
		certificates[string(served.Certificate[0])] = true
		if quiet++; quiet <= late || len(blocks(b.Certs)) > 1 {
			now = now.Add(20 * time.Minute)
		} else {
			now = now.Add(30 * 24 * time.Hour)
		}
	}
	require.GreaterOrEqual(t, len(certificates), 25)
	require.Len(t, blocks(b.Certs), 1)
}

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
