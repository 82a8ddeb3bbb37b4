package certificate

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
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
