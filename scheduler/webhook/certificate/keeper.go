// Package certificate provides the webhook's TLS certificate: Files loads one from files, Keeper
// manages one, with its authority, in a Secret that replicas share.
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

// ErrConflict: another replica has written the bundle.
var ErrConflict = errors.New("changed by another replica")

// Store has the bundle of all replicas.
type Store interface {
	// Load returns version "" if there is no bundle.
	Load(ctx context.Context) (Bundle, string, error)
	Save(ctx context.Context, b Bundle, version string) error
}

// Announcer makes API servers trust authorities.
type Announcer interface {
	Announce(ctx context.Context, trusted []byte) error
}

const (
	syncInterval  = time.Minute
	retryInterval = 5 * time.Second // after an error
	maxAttempts   = 5               // at conflicts
)

// Keeper renews and announces the bundle and serves its certificate.
type Keeper struct {
	Store    Store
	Announce Announcer
	// Names are host names and IP addresses.
	Names []string
	Now   func() time.Time
	Log   *slog.Logger

	served atomic.Pointer[tls.Certificate]
	cert   []byte // used only by Sync
}

// Run calls Sync every minute.
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

// Sync renews, announces and loads the bundle, even if announcing fails.
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

// Ready returns an error without a certificate.
func (k *Keeper) Ready() error {
	_, err := k.GetCertificate(nil)
	return err
}
