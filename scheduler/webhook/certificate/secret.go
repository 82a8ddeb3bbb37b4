package certificate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Keys, besides those of type kubernetes.io/tls.
const (
	keyTrusted      = "ca.crt"
	keyAuthorityKey = "ca.key"
)

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
	return Bundle{
		Trusted: found.Data[keyTrusted], AuthorityKey: found.Data[keyAuthorityKey],
		Cert: found.Data[corev1.TLSCertKey], Key: found.Data[corev1.TLSPrivateKeyKey],
	}, found.ResourceVersion, nil
}

// Save implements Store.
func (s Secret) Save(ctx context.Context, b Bundle, version string) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
		Data: map[string][]byte{
			keyTrusted: b.Trusted, keyAuthorityKey: b.AuthorityKey,
			corev1.TLSCertKey: b.Cert, corev1.TLSPrivateKeyKey: b.Key,
		},
	}
	secrets := s.Client.Secrets(s.Namespace)
	if version == "" {
		_, err := secrets.Create(ctx, secret, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
			return fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, ErrConflict)
		case apierrors.IsForbidden(err):
			return fmt.Errorf("secret %s/%s does not exist and the webhook may not create it: apply install/admission/webhook.yaml: %w", s.Namespace, s.Name, err)
		case err != nil:
			return fmt.Errorf("create secret %s/%s: %w", s.Namespace, s.Name, err)
		}
		return nil
	}
	// Keep labels, owner and type.
	found, err := secrets.Get(ctx, s.Name, metav1.GetOptions{})
	if err == nil && found.ResourceVersion == version {
		found.Data = secret.Data
		_, err = secrets.Update(ctx, found, metav1.UpdateOptions{})
	} else if err == nil {
		err = ErrConflict
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = ErrConflict
	}
	if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}
