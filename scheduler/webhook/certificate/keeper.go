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

// ErrConflict means that another replica has written the bundle.
var ErrConflict = errors.New("changed by another replica")

// Store has the bundle that all replicas share.
type Store interface {
	// Load returns the bundle and its version; version "" if there is none.
	Load(ctx context.Context) (Bundle, string, error)
	// Save returns ErrConflict if the version has changed.
	Save(ctx context.Context, b Bundle, version string) error
}

// Announcer makes the API server trust authorities.
type Announcer interface {
	Announce(ctx context.Context, trusted []byte) error
}

const (
	syncInterval  = time.Minute
	retryInterval = 5 * time.Second // after an error
	maxAttempts   = 5               // at conflicts
)

// Keeper renews the bundle, announces its authorities and serves its certificate.
type Keeper struct {
	Store    Store
	Announce Announcer
	// Names are the host names and IP addresses of the webhook.
	Names []string
	Now   func() time.Time
	Log   *slog.Logger

	served atomic.Pointer[tls.Certificate]
	cert   []byte // of served; only for Sync
}

// Run calls Sync every minute until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		wait := syncInterval
		if err := k.Sync(ctx); err != nil && ctx.Err() == nil {
			k.Log.Error("failed to update the certificate", "error", err)
			wait = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Sync renews, announces and loads the bundle once. It loads the certificate even if Announce fails.
func (k *Keeper) Sync(ctx context.Context) error {
	b, err := k.renew(ctx)
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
		k.Log.Info("certificate loaded", "names", pair.Leaf.DNSNames, "until", pair.Leaf.NotAfter)
	}
	return announced
}

// renew returns the current bundle of all replicas.
func (k *Keeper) renew(ctx context.Context) (Bundle, error) {
	for range maxAttempts {
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
	return Bundle{}, fmt.Errorf("update the certificate: %d tries: %w", maxAttempts, ErrConflict)
}

// GetCertificate is for tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := k.served.Load(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("no certificate yet")
}

// Ready returns an error until there is a certificate.
func (k *Keeper) Ready() error {
	_, err := k.GetCertificate(nil)
	return err
}
