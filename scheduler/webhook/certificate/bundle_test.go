package certificate

import (
	"crypto/x509"
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
func trusts(caBundle []byte, served Bundle, now time.Time) error {
	pair, err := served.Pair()
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caBundle)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: names[0], Roots: roots, CurrentTime: now})
	return err
}

func TestNextOfEmptyBundle(t *testing.T) {
	b, reason := next(t, Bundle{}, start)
	require.Contains(t, reason, "new authority: there is none")
	require.NoError(t, trusts(b.Trusted, b, start))
	require.NoError(t, trusts(b.Trusted, b, start.Add(-backdate+time.Minute)), "a clock that is behind")
	again, reason := next(t, b, start.Add(time.Minute))
	require.Empty(t, reason)
	require.Equal(t, b, again)

	_, _, err := Bundle{}.Next(start, nil)
	require.ErrorContains(t, err, "set the webhook's Service")
}

func TestNextFixes(t *testing.T) {
	whole, _ := next(t, Bundle{}, start)
	other, _ := next(t, Bundle{}, start)
	for name, tc := range map[string]struct {
		spoil func(*Bundle)
		want  string
		// sameAuthority: only the certificate has to be made again.
		sameAuthority bool
	}{
		"no certificate":           {func(b *Bundle) { b.Cert = nil }, "there is none", true},
		"another's key":            {func(b *Bundle) { b.Key = other.Key }, "private key does not match", true},
		"no PEM":                   {func(b *Bundle) { b.Cert = []byte("x") }, "read the certificate", true},
		"another's certificate":    {func(b *Bundle) { b.Cert, b.Key = other.Cert, other.Key }, "signed by unknown authority", true},
		"no authority":             {func(b *Bundle) { b.Trusted = nil }, "there is none", false},
		"no authority's key":       {func(b *Bundle) { b.AuthorityKey = nil }, "private key", false},
		"another authority's key":  {func(b *Bundle) { b.AuthorityKey = other.AuthorityKey }, "another certificate", false},
		"a server as an authority": {func(b *Bundle) { b.Trusted = b.Cert }, "there is none", false},
		"an unreadable certificate": {func(b *Bundle) {
			b.Trusted = append(b.Trusted, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"...)
		}, "unreadable", true},
	} {
		t.Run(name, func(t *testing.T) {
			b := whole
			b.Trusted = append([]byte(nil), whole.Trusted...)
			tc.spoil(&b)
			got, reason := next(t, b, start)
			require.Contains(t, reason, tc.want)
			require.NoError(t, trusts(got.Trusted, got, start))
			if tc.sameAuthority {
				require.Equal(t, string(whole.Trusted), string(got.Trusted))
			}
		})
	}
}

func TestNextForOtherNames(t *testing.T) {
	b, _ := next(t, Bundle{}, start)
	renamed, reason, err := b.Next(start, append(names, "127.1.2.3", "another.svc"))
	require.NoError(t, err)
	require.Contains(t, reason, "127.1.2.3")
	pair, err := renamed.Pair()
	require.NoError(t, err)
	require.NoError(t, pair.Leaf.VerifyHostname("127.1.2.3"))
	require.NoError(t, pair.Leaf.VerifyHostname("another.svc"))
	require.NoError(t, trusts(b.Trusted, renamed, start))
}

// TestNextOverTheYears: an API server and a replica that both learn late of every change
// trust and serve what goes together, all the time, through every renewal.
func TestNextOverTheYears(t *testing.T) {
	const late = 2 // looks
	b, _ := next(t, Bundle{}, start)
	history := []Bundle{b, b, b}
	authorities, certificates := map[string]bool{}, map[string]bool{}
	quiet := 0 // looks since the last change
	for now := start; now.Before(start.AddDate(25, 0, 0)); {
		var reason string
		if b, reason = next(t, b, now); reason != "" {
			t.Log(now.Format(time.DateTime), reason)
			quiet = 0
		}
		history = append(history[1:], b)
		for back := range late + 1 {
			require.NoError(t, trusts(history[back].Trusted, b, now), "an API server that is %d looks late", back)
			require.NoError(t, trusts(b.Trusted, history[back], now), "a replica that is %d looks late", back)
		}
		authorities[string(b.AuthorityKey)], certificates[string(b.Cert)] = true, true
		if quiet++; quiet <= late || len(parseAuthorities(b.Trusted)) > 1 {
			now = now.Add(20 * time.Minute)
		} else {
			now = now.Add(30 * 24 * time.Hour)
		}
	}
	require.GreaterOrEqual(t, len(authorities), 3)
	require.GreaterOrEqual(t, len(certificates), 25)
	require.Len(t, parseAuthorities(b.Trusted), 1)
}
