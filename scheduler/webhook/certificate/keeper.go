// Package certificate provides the webhook's TLS certificate: Files loads one from files, Keeper manages one in a
// Secret that replicas share.
package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
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

const (
	syncInterval  = time.Minute
	retryInterval = 5 * time.Second // after an error
)

// Keeper renews and announces the bundle and serves its certificate.
type Keeper struct {
	Store Store
	// Announce makes API servers trust certificates.
	Announce func(ctx context.Context, trusted []byte) error
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
	announced := k.Announce(ctx, b.Certs)
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

// Secret is a Store.
type Secret struct {
	Client          typedcorev1.SecretsGetter
	Namespace, Name string
}

// Load implements Store. The Secret may be empty.
func (s Secret) Load(ctx context.Context) (Bundle, string, error) {
	found, err := s.Client.Secrets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Bundle{}, "", nil
	}
	if err != nil {
		return Bundle{}, "", fmt.Errorf("read secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	b := Bundle{Certs: found.Data[corev1.TLSCertKey], Keys: found.Data[corev1.TLSPrivateKeyKey]}
	return b, found.ResourceVersion, nil
}

// Save implements Store.
func (s Secret) Save(ctx context.Context, b Bundle, version string) error {
	secrets := s.Client.Secrets(s.Namespace)
	data := map[string][]byte{corev1.TLSCertKey: b.Certs, corev1.TLSPrivateKeyKey: b.Keys}
	var changed bool
	var err error
	if version == "" {
		meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}
		_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: meta, Data: data}, metav1.CreateOptions{})
	} else {
		var found *corev1.Secret
		found, err = secrets.Get(ctx, s.Name, metav1.GetOptions{})
		if changed = err == nil && found.ResourceVersion != version; err == nil && !changed {
			found.Data = data // labels, owner and type stay
			_, err = secrets.Update(ctx, found, metav1.UpdateOptions{})
		}
	}
	switch {
	case changed || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err):
		err = apierrors.NewConflict(corev1.Resource("secrets"), s.Name, errors.New("changed by another replica"))
	case version == "" && apierrors.IsForbidden(err):
		err = fmt.Errorf("it does not exist and the webhook may not create it: apply install/admission/webhook.yaml: %w", err)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("write secret %s/%s: %w", s.Namespace, s.Name, err)
}

// Configurations writes the caBundle of two configurations; names may be empty.
type Configurations struct {
	Client     typedv1.AdmissionregistrationV1Interface
	Mutating   string
	Validating string
}

func (c Configurations) Announce(ctx context.Context, trusted []byte) error {
	var errs []error
	if c.Mutating != "" {
		if err := announce(ctx, c.Client.MutatingWebhookConfigurations(), c.Mutating, trusted); err != nil {
			errs = append(errs, fmt.Errorf("mutatingwebhookconfiguration %s: %w", c.Mutating, err))
		}
	}
	if c.Validating != "" {
		if err := announce(ctx, c.Client.ValidatingWebhookConfigurations(), c.Validating, trusted); err != nil {
			errs = append(errs, fmt.Errorf("validatingwebhookconfiguration %s: %w", c.Validating, err))
		}
	}
	return errors.Join(errs...)
}

type api[C any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (C, error)
	Patch(ctx context.Context, name string, t types.PatchType, data []byte, o metav1.PatchOptions,
		subresources ...string) (C, error)
}

func announce[C any](ctx context.Context, client api[C], name string, trusted []byte) error {
	found, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	data, err := json.Marshal(found)
	if err != nil {
		return err
	}
	var configuration configuration
	if err := json.Unmarshal(data, &configuration); err != nil {
		return err
	}
	patch, err := configuration.patch(trusted)
	if err != nil || patch == nil {
		return err
	}
	if _, err := client.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the caBundle: %w", err)
	}
	return nil
}

// configuration has what both kinds share.
type configuration struct {
	Webhooks []struct {
		Name         string
		ClientConfig struct{ CABundle []byte }
	}
}

// patch returns nil for no change. A patch keeps fields that this client does not know; it tests names, because
// paths are positions.
func (c *configuration) patch(trusted []byte) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var patch []operation
	for i, w := range c.Webhooks {
		if at := fmt.Sprintf("/webhooks/%d", i); !bytes.Equal(w.ClientConfig.CABundle, trusted) {
			patch = append(patch, operation{"test", at + "/name", w.Name},
				operation{"add", at + "/clientConfig/caBundle", trusted})
		}
	}
	if patch == nil {
		return nil, nil
	}
	return json.Marshal(patch)
}
