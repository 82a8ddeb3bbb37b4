package certificate

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

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
