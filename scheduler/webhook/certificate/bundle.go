package certificate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	life = 365 * 24 * time.Hour
	// renew is the time left at which a certificate is replaced.
	renew = life / 3
	// settle is how long API servers and replicas may need to receive a change.
	settle = time.Hour
	// backdate is for clocks that are behind.
	backdate = time.Hour
)

// Bundle is the content of the Secret, in PEM: self-signed certificates, the newest first, and their keys. All
// of them are trusted.
type Bundle struct {
	Certs, Keys []byte
}

// Next returns the bundle for this time and these names, and the reason of a change. It replaces expired and
// damaged certificates.
//
// A new certificate is served only after settle, when all API servers trust it. The old one stays trusted until
// settle after that, because replicas may still serve it.
func (b Bundle) Next(now time.Time, names []string) (Bundle, string, error) {
	if len(names) == 0 {
		return b, "", errors.New("no names for the certificate: set the webhook's Service")
	}
	pairs := b.pairs(now)
	reason := missing(pairs, names, now)
	if reason != "" {
		pair, err := selfSigned(names, now)
		if err != nil {
			return b, "", fmt.Errorf("create a certificate for %s: %w", names[0], err)
		}
		pairs = slices.Insert(pairs, 0, pair)
	} else if i := served(pairs, names[0], now); i < len(pairs)-1 && age(&pairs[i], now) >= 2*settle {
		pairs = pairs[:i+1]
		reason = "removed former certificates: no replica serves them"
	}
	next, err := encode(pairs)
	if err != nil {
		return b, "", err
	}
	if reason == "" && !bytes.Equal(next.Certs, b.Certs) {
		reason = "removed expired or unreadable certificates"
	}
	return next, reason, nil
}

// missing returns why a new certificate is needed; "" if it is not.
func missing(pairs []tls.Certificate, names []string, now time.Time) string {
	hasAll := func(pair tls.Certificate) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return pair.Leaf.VerifyHostname(name) != nil })
	}
	switch i := slices.IndexFunc(pairs, hasAll); {
	case len(pairs) == 0:
		return "new certificate: there is no usable one"
	case i < 0:
		return "new certificate: none is for all of " + strings.Join(names, ", ")
	case now.After(pairs[i].Leaf.NotAfter.Add(-renew)):
		return "new certificate: the old one expires " + pairs[i].Leaf.NotAfter.Format(time.RFC3339)
	}
	return ""
}

// Serving returns the certificate to serve at this time: API servers call the webhook by name.
func (b Bundle) Serving(name string, now time.Time) (*tls.Certificate, error) {
	pairs := b.pairs(now)
	if len(pairs) == 0 {
		return nil, errors.New("there is no usable certificate")
	}
	return &pairs[served(pairs, name, now)], nil
}

// served returns the newest settled certificate for the name; without one, the oldest for the name.
func served(pairs []tls.Certificate, name string, now time.Time) (found int) {
	for i := range pairs {
		if pairs[i].Leaf.VerifyHostname(name) != nil {
			continue
		}
		if found = i; age(&pairs[i], now) >= settle {
			break
		}
	}
	return found
}

func age(pair *tls.Certificate, now time.Time) time.Duration {
	return now.Sub(pair.Leaf.NotBefore.Add(backdate))
}

// pairs returns the valid certificates that have a key.
func (b Bundle) pairs(now time.Time) (found []tls.Certificate) {
	for _, c := range blocks(b.Certs) {
		for _, key := range blocks(b.Keys) {
			pair, err := tls.X509KeyPair(c, key)
			if err == nil && !now.Before(pair.Leaf.NotBefore) && !now.After(pair.Leaf.NotAfter) {
				found = append(found, pair)
				break
			}
		}
	}
	return found
}

func blocks(data []byte) (all [][]byte) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		all = append(all, pem.EncodeToMemory(block))
	}
	return all
}

func encode(pairs []tls.Certificate) (b Bundle, err error) {
	for i := range pairs {
		encoded, err := cert.EncodeCertificates(pairs[i].Leaf)
		if err != nil {
			return b, err
		}
		key, err := keyutil.MarshalPrivateKeyToPEM(pairs[i].PrivateKey)
		if err != nil {
			return b, err
		}
		b.Certs, b.Keys = append(b.Certs, encoded...), append(b.Keys, key...)
	}
	return b, nil
}

func selfSigned(names []string, now time.Time) (pair tls.Certificate, err error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0][:min(len(names[0]), 64)]}, // limit of X.509
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore:   now.Add(-backdate), NotAfter: now.Add(life),
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return pair, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

const rereadInterval = 10 * time.Second

// Files serves a certificate from two files. Handshakes reread them and ignore an invalid pair.
type Files struct {
	certPath, keyPath string
	now               func() time.Time
	log               *slog.Logger

	mu        sync.Mutex
	lastRead  time.Time
	cert, key []byte
	pair      *tls.Certificate
}

func NewFiles(certPath, keyPath string, now func() time.Time, log *slog.Logger) (*Files, error) {
	f := &Files{certPath: certPath, keyPath: keyPath, now: now, log: log, lastRead: now()}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.lastRead) >= rereadInterval {
		f.lastRead = now
		if err := f.read(); err != nil {
			f.log.Error("failed to reload the certificate: keeping the old one", "error", err)
		}
	}
	return f.pair, nil
}

// Ready returns nil: NewFiles read a certificate.
func (f *Files) Ready() error { return nil }

func (f *Files) read() error {
	cert, err := os.ReadFile(f.certPath)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	key, err := os.ReadFile(f.keyPath)
	if err != nil {
		return fmt.Errorf("read the certificate's key: %w", err)
	}
	if f.pair != nil && bytes.Equal(cert, f.cert) && bytes.Equal(key, f.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", f.certPath, f.keyPath, err)
	}
	if f.pair != nil {
		f.log.Info("certificate loaded", "path", f.certPath, "until", pair.Leaf.NotAfter)
	}
	f.cert, f.key, f.pair = cert, key, &pair
	return nil
}
