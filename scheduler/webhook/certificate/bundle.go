package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/keyutil"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	servingLife   = 365 * 24 * time.Hour
	// A certificate is renewed when this time is left.
	renewServing   = servingLife / 3
	renewAuthority = 2 * servingLife // for two more certificates
	// settle is how long API servers and replicas may need to receive a change.
	settle = time.Hour
)

// Bundle is the content of the Secret, in PEM.
type Bundle struct {
	// Trusted is the caBundle: authorities, the newest first.
	Trusted []byte
	// AuthorityKey belongs to the newest authority.
	AuthorityKey []byte
	Cert, Key    []byte
}

// Next returns the bundle for this time and these names, and the reason of a change. It replaces
// missing, expired and damaged parts.
//
// A new authority signs only after settle, when all API servers trust it. The old one stays trusted
// until settle after its last certificate was replaced.
func (b Bundle) Next(now time.Time, names []string) (Bundle, string, error) {
	if len(names) == 0 {
		return b, "", errors.New("no names for the certificate: set the webhook's Service")
	}
	var reasons []string
	trusted := slices.DeleteFunc(parseAuthorities(b.Trusted), func(c *x509.Certificate) bool {
		return now.Before(c.NotBefore) || now.After(c.NotAfter)
	})
	newest, err := b.newest(trusted, now)
	if err != nil {
		reasons = append(reasons, "new authority: "+err.Error())
		if newest, err = newAuthority(now); err != nil {
			return b, "", err
		}
		if b.AuthorityKey, err = keyutil.MarshalPrivateKeyToPEM(newest.key); err != nil {
			return b, "", err
		}
		trusted = append([]*x509.Certificate{newest.cert}, trusted...)
	}
	serving, err := b.serving(trusted, names, now)
	ripe := !now.Before(newest.cert.NotBefore.Add(backdate + settle))
	renew := true
	switch {
	case err != nil:
		reasons = append(reasons, "new certificate: "+err.Error())
	case ripe && serving.CheckSignatureFrom(newest.cert) != nil:
		reasons = append(reasons, "new certificate: signed by the new authority")
	case now.After(serving.NotAfter.Add(-renewServing)) && (ripe || len(trusted) == 1):
		reasons = append(reasons, "new certificate: the old one expires "+serving.NotAfter.Format(time.RFC3339))
	default:
		renew = false
	}
	if renew {
		if b.Cert, b.Key, err = newest.issue(names, now); err != nil {
			return b, "", err
		}
	} else if settled := serving.NotBefore.Add(backdate + settle); len(trusted) > 1 && serving.CheckSignatureFrom(newest.cert) == nil && !now.Before(settled) {
		trusted = trusted[:1]
		reasons = append(reasons, "removed former authorities: none of their certificates is served")
	}
	encoded := encode(trusted...)
	if len(reasons) == 0 && !bytes.Equal(encoded, b.Trusted) {
		reasons = append(reasons, "removed expired or unreadable authorities")
	}
	b.Trusted = encoded
	return b, strings.Join(reasons, "; "), nil
}

// newest returns an error if a new authority is needed.
func (b Bundle) newest(trusted []*x509.Certificate, now time.Time) (*authority, error) {
	if len(trusted) == 0 {
		return nil, errors.New("there is none")
	}
	key, err := parseAuthorityKey(b.AuthorityKey, trusted[0])
	if err != nil {
		return nil, fmt.Errorf("unusable key: %w", err)
	}
	if now.After(trusted[0].NotAfter.Add(-renewAuthority)) {
		return nil, fmt.Errorf("the old one expires %s", trusted[0].NotAfter.Format(time.RFC3339))
	}
	return &authority{cert: trusted[0], key: key}, nil
}

// serving returns an error if a new certificate is needed.
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

// Pair returns what to serve.
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
