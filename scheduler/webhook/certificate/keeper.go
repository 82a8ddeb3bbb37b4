package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// ErrConflict says that another replica was faster: what it wrote has to be read first.
var ErrConflict = errors.New("changed meanwhile by another replica")

// Store holds the bundle that all replicas share.
type Store interface {
	// Load is what it holds, and of which version; nothing, version "", if there is none yet.
	Load(ctx context.Context) (Bundle, string, error)
	// Save replaces what was loaded. ErrConflict: it is another version by now.
	Save(ctx context.Context, b Bundle, version string) error
}

// Announcer tells the API server which authorities to trust.
type Announcer interface {
	Announce(ctx context.Context, trusted []byte) error
}

const (
	// lookEvery is how often a replica looks for what others changed, and whether
	// something has to be renewed.
	lookEvery = time.Minute
	// retryAfter is how soon it looks again when it failed.
	retryAfter = 5 * time.Second
	// attempts are how often a conflict is met by reading again.
	attempts = 5
)

// Keeper keeps the Secret's bundle valid, announces its authorities, and serves its certificate.
type Keeper struct {
	Store    Store
	Announce Announcer
	// Names are those that the API server calls the webhook by: its Service's, and maybe IP addresses.
	Names []string
	Now   func() time.Time
	Log   *slog.Logger

	served atomic.Pointer[tls.Certificate]
	cert   []byte // of served; Sync's alone
}

// Run looks every minute until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		wait := lookEvery
		if err := k.Sync(ctx); err != nil && ctx.Err() == nil {
			k.Log.Error("certificate", "error", err)
			wait = retryAfter
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Sync looks once. A certificate is served as soon as there is one, also where its
// authority could not be announced.
func (k *Keeper) Sync(ctx context.Context) error {
	b, err := k.agree(ctx)
	if err != nil {
		return err
	}
	announced := k.Announce.Announce(ctx, b.Trusted)
	if !bytes.Equal(b.Cert, k.cert) {
		pair, err := b.Pair()
		if err != nil {
			return err
		}
		k.served.Store(pair)
		k.cert = b.Cert
		k.Log.Info("a new certificate is served", "names", pair.Leaf.DNSNames, "until", pair.Leaf.NotAfter)
	}
	return announced
}

// agree is the bundle that all replicas have.
func (k *Keeper) agree(ctx context.Context) (Bundle, error) {
	for range attempts {
		b, version, err := k.Store.Load(ctx)
		if err != nil {
			return b, err
		}
		next, reason, err := b.Next(k.Now(), k.Names)
		if err != nil || reason == "" {
			return next, err
		}
		err = k.Store.Save(ctx, next, version)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err == nil {
			k.Log.Info("certificates renewed", "reason", reason)
		}
		return next, err
	}
	return Bundle{}, fmt.Errorf("keep the certificate: %d times in a row %w", attempts, ErrConflict)
}

// GetCertificate is tls.Config's.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := k.served.Load(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// Ready is an error as long as there is nothing to serve.
func (k *Keeper) Ready() error {
	_, err := k.GetCertificate(nil)
	return err
}
