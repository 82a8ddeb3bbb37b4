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

// lookAgain is how often the files are read at most; a handshake in between is served what was read last.
const lookAgain = 10 * time.Second

// Files serves a certificate and its key from two files. They are read again at a handshake;
// a pair that can't be used (half of a change, say) leaves the former one in place.
type Files struct {
	certPath, keyPath string
	now               func() time.Time
	log               *slog.Logger

	mu        sync.Mutex
	looked    time.Time
	cert, key []byte
	pair      *tls.Certificate
}

// NewFiles reads the two files.
func NewFiles(certPath, keyPath string, now func() time.Time, log *slog.Logger) (*Files, error) {
	f := &Files{certPath: certPath, keyPath: keyPath, now: now, log: log, looked: now()}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// GetCertificate is tls.Config's.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.looked) >= lookAgain {
		f.looked = now
		if err := f.read(); err != nil {
			f.log.Error("the former certificate is served", "error", err)
		}
	}
	return f.pair, nil
}

// Ready says that there is something to serve: NewFiles has seen to it.
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
		f.log.Info("a new certificate is served", "path", f.certPath, "until", pair.Leaf.NotAfter)
	}
	f.cert, f.key, f.pair = cert, key, &pair
	return nil
}
