package certificate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// backdate is how long ago a new certificate began, for clocks that are behind ours.
const backdate = time.Hour

// authority is a certificate that signs others, and its key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority that signs itself.
func newAuthority(now time.Time) (*authority, error) {
	template, err := template(now, authorityLife)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "gpuslice webhook authority"}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.MaxPathLenZero = true // it signs no other authority
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	a := &authority{cert: template, key: key}
	der, err := a.sign(template, key.Public())
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("read the authority just made: %w", err)
	}
	return a, nil
}

// issue makes a server's certificate for the names, hosts' or IP addresses, the first of which is its subject. It
// does not outlive its authority.
func (a *authority) issue(names []string, now time.Time) (certPEM, keyPEM []byte, err error) {
	template, err := template(now, servingLife)
	if err != nil {
		return nil, nil, err
	}
	template.Subject = pkix.Name{CommonName: shortened(names[0])}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the serving key: %w", err)
	}
	der, err := a.sign(template, key.Public())
	if err != nil {
		return nil, nil, err
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	return encodeCert(der), keyPEM, nil
}

func (a *authority) sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return der, nil
}

func template(now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(life),
	}, nil
}

// shortened is a name as a subject can hold it (64 bytes); what clients compare are the
// alternative names.
func shortened(name string) string { return name[:min(len(name), 64)] }

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// parseAuthorities reads the certificates of authorities that stand one after the other.
// What is none is left out.
func parseAuthorities(data []byte) []*x509.Certificate {
	var found []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.IsCA {
			found = append(found, cert)
		}
	}
	return found
}

// parseAuthorityKey reads the key that belongs to the authority.
func parseAuthorityKey(data []byte, cert *x509.Certificate) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no key in PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("the key is another certificate's")
	}
	return key, nil
}
