// Package certificate provides the webhook's TLS certificate: Files loads one from files, Keeper manages one in a
// Secret that replicas share.
package certificate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/retry"

	"github.com/gpuslice/gpuslice/internal/periodic"
)

// Store has the bundle of all replicas.
type Store interface {
	// Load returns version "" if there is no bundle.
	Load(ctx context.Context) (Bundle, string, error)
	// Save returns a Conflict error of the API server if another replica has written the bundle.
	Save(ctx context.Context, b Bundle, version string) error
}

// Announcer makes API servers trust certificates.
type Announcer interface {
	Announce(ctx context.Context, trusted []byte) error
}

const (
	syncInterval  = time.Minute
	retryInterval = 5 * time.Second // after an error
)

// Keeper renews and announces the bundle and serves its certificate.
type Keeper struct {
	Store    Store
	Announce Announcer
	// Names are host names and IP addresses; API servers call the first.
	Names []string
	Now   func() time.Time
	Log   *slog.Logger

	served atomic.Pointer[tls.Certificate]
}

// Run calls Sync every minute.
func (k *Keeper) Run(ctx context.Context) {
	periodic.Vary(ctx, nil, func() time.Duration {
		if err := k.Sync(ctx); err != nil && ctx.Err() == nil {
			k.Log.Error("failed to update the certificate", "error", err)
			return retryInterval
		}
		return syncInterval
	})
}

// Sync renews, announces and loads the bundle, even if announcing fails.
func (k *Keeper) Sync(ctx context.Context) error {
	b, err := k.renew(ctx)
	if err != nil {
		return fmt.Errorf("update the certificate: %w", err)
	}
	announced := k.Announce.Announce(ctx, b.Certs)
	pair, err := b.Serving(k.Names[0], k.Now())
	if err != nil {
		return err
	}
	if old := k.served.Swap(pair); old == nil || !old.Leaf.Equal(pair.Leaf) {
		k.Log.Info("certificate loaded", "names", pair.Leaf.DNSNames, "until", pair.Leaf.NotAfter)
	}
	return announced
}

func (k *Keeper) renew(ctx context.Context) (next Bundle, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		b, version, err := k.Store.Load(ctx)
		if err != nil {
			return err
		}
		var reason string
		if next, reason, err = b.Next(k.Now(), k.Names); err != nil || reason == "" {
			return err
		}
		if err = k.Store.Save(ctx, next, version); err == nil {
			k.Log.Info("certificates renewed", "reason", reason)
		}
		return err
	})
	return next, err
}

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
