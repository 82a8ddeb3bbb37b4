package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	servingLife   = 365 * 24 * time.Hour
	// renewServing is what of its life a certificate has left when it is renewed.
	renewServing = servingLife / 3
	// renewAuthority leaves time for two more certificates of the old one.
	renewAuthority = 2 * servingLife
	// settle is how long every API server and every replica have to take up a change: a new authority is
	// trusted for so long before it signs, and an old one for so long after its last certificate.
	settle = time.Hour
)

// Bundle is what the Secret holds, all of it PEM.
type Bundle struct {
	// Trusted are the authorities' certificates, the newest first: the caBundle.
	Trusted []byte
	// AuthorityKey is the key of the newest.
	AuthorityKey []byte
	// Cert and Key are what is served.
	Cert, Key []byte
}

// Next is what the bundle has to become at this time to serve these names, and why; the
// reason is empty where it stays as it is. A bundle that is empty, expired or damaged is
// replaced as far as it has to be.
//
// A change of authority takes two steps, so that no API server meets a certificate that it
// can't trust yet: the new authority is trusted first, and signs an hour later.
func (b Bundle) Next(now time.Time, names []string) (Bundle, string, error) {
	if len(names) == 0 {
		return b, "", errors.New("a certificate without a name serves nobody: name the webhook's Service")
	}
	trusted := slices.DeleteFunc(parseAuthorities(b.Trusted), func(c *x509.Certificate) bool { return !within(c, now) })
	newest, reason := b.newest(trusted, now)
	if newest == nil {
		var err error
		if newest, err = newAuthority(now); err != nil {
			return b, "", err
		}
		if b.AuthorityKey, err = encodeKey(newest.key); err != nil {
			return b, "", err
		}
		trusted = append([]*x509.Certificate{newest.cert}, trusted...)
	}
	serving, broken := b.serving(trusted, names, now)
	ripe := !now.Before(newest.cert.NotBefore.Add(backdate + settle))
	switch {
	case broken != nil:
		reason = join(reason, "the certificate is made again: "+broken.Error())
	case ripe && serving.CheckSignatureFrom(newest.cert) != nil:
		reason = join(reason, "the certificate is made again: the new authority signs from now on")
		serving = nil
	case now.After(serving.NotAfter.Add(-renewServing)) && (ripe || len(trusted) == 1):
		reason = join(reason, "the certificate is renewed: it ends "+serving.NotAfter.Format(time.RFC3339))
		serving = nil
	}
	if serving == nil {
		var err error
		if b.Cert, b.Key, err = newest.issue(names, now); err != nil {
			return b, "", err
		}
	} else if settled := serving.NotBefore.Add(backdate + settle); len(trusted) > 1 && serving.CheckSignatureFrom(newest.cert) == nil && !now.Before(settled) {
		trusted = trusted[:1]
		reason = join(reason, "former authorities are trusted no longer: nothing of theirs is served")
	}
	pem := encodeAll(trusted)
	if reason == "" && !bytes.Equal(pem, b.Trusted) {
		reason = "authorities that have expired or can't be read are left out"
	}
	b.Trusted = pem
	return b, reason, nil
}

// newest is the authority that signs; nil, and why, where there has to be a new one.
func (b Bundle) newest(trusted []*x509.Certificate, now time.Time) (*authority, string) {
	if len(trusted) == 0 {
		return nil, "a new authority: there is none"
	}
	key, err := parseAuthorityKey(b.AuthorityKey, trusted[0])
	if err != nil {
		return nil, "a new authority: the present one's key can't be used: " + err.Error()
	}
	if now.After(trusted[0].NotAfter.Add(-renewAuthority)) {
		return nil, "a new authority: the present one ends " + trusted[0].NotAfter.Format(time.RFC3339)
	}
	return &authority{cert: trusted[0], key: key}, ""
}

// serving is the certificate that is served, or why it can't be.
func (b Bundle) serving(trusted []*x509.Certificate, names []string, now time.Time) (*x509.Certificate, error) {
	pair, err := b.Pair()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, c := range trusted {
		roots.AddCert(c)
	}
	for _, name := range names {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
			return nil, err
		}
	}
	return pair.Leaf, nil
}

// Pair is what is served.
func (b Bundle) Pair() (*tls.Certificate, error) {
	if len(b.Cert) == 0 {
		return nil, errors.New("there is none")
	}
	pair, err := tls.X509KeyPair(b.Cert, b.Key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate and its key: %w", err)
	}
	return &pair, nil
}

func within(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && !now.After(c.NotAfter)
}

func encodeAll(certs []*x509.Certificate) []byte {
	var all []byte
	for _, c := range certs {
		all = append(all, encodeCert(c.Raw)...)
	}
	return all
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
