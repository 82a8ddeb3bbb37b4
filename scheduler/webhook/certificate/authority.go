package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// backdate is for clocks that are behind.
const backdate = time.Hour

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(now time.Time) (*authority, error) {
	return (&authority{}).sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "gpuslice webhook authority"},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:  x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
	})
}

// issue creates a serving certificate. It ends with its authority.
func (a *authority) issue(names []string, now time.Time) (certPEM, keyPEM []byte, err error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0][:min(len(names[0]), 64)]}, // limit of X.509
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore:   now.Add(-backdate), NotAfter: now.Add(servingLife),
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	pair, err := a.sign(template)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = keyutil.MarshalPrivateKeyToPEM(pair.key)
	return encode(pair.cert), keyPEM, err
}

// sign creates a key and its certificate; without a.cert, it is self-signed.
func (a *authority) sign(template *x509.Certificate) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	signed, err := x509.ParseCertificate(der)
	return &authority{signed, key}, err
}

func encode(certs ...*x509.Certificate) []byte {
	data, _ := cert.EncodeCertificates(certs...) // never fails
	return data
}

// parseAuthorities ignores what it cannot read.
func parseAuthorities(data []byte) []*x509.Certificate {
	var found []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != cert.CertificateBlockType {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.IsCA {
			found = append(found, c)
		}
	}
	return found
}

func parseAuthorityKey(data []byte, authority *x509.Certificate) (*ecdsa.PrivateKey, error) {
	parsed, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if public, isEC := authority.PublicKey.(*ecdsa.PublicKey); !ok || !isEC || !public.Equal(key.Public()) {
		return nil, errors.New("the key belongs to another certificate")
	}
	return key, nil
}
