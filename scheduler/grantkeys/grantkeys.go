// Package grantkeys creates the keys for grants in the cluster: a Secret with the scheduler's private key, and a ConfigMap
// with the public key for agents. Only cmd/gpuslice-scheduler imports it.
package grantkeys

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/grant"
)

// The files of the Secret and of the ConfigMap.
const (
	PrivateFile = "private.pem"
	PublicFile  = "public.pem"
)

// Objects names the two objects.
type Objects struct {
	Namespace, Secret, ConfigMap string
}

func (o Objects) Validate() error {
	if o.Namespace == "" || o.Secret == "" || o.ConfigMap == "" {
		return errors.New("create the grant keys: set --namespace, --secret and --config-map")
	}
	return nil
}

// Ensure creates the objects that are missing. It never changes a private key: grants of running pods are signed with it.
// It replaces public keys only if they do not include the private keys' own: agents would reject every grant.
func Ensure(ctx context.Context, client kubernetes.Interface, o Objects, log *slog.Logger) error {
	if err := o.Validate(); err != nil {
		return err
	}
	ring, err := o.private(ctx, client, log)
	if err != nil {
		return fmt.Errorf("private key in Secret %s/%s: %w", o.Namespace, o.Secret, err)
	}
	if err := o.public(ctx, client, ring, log); err != nil {
		return fmt.Errorf("public keys in ConfigMap %s/%s: %w", o.Namespace, o.ConfigMap, err)
	}
	return nil
}

// private returns the public keys of the private keys.
func (o Objects) private(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (grant.Keyring, error) {
	secrets := client.CoreV1().Secrets(o.Namespace)
	secret, err := secrets.Get(ctx, o.Secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		key, err := grant.NewPrivateKey()
		if err != nil {
			return grant.Keyring{}, err
		}
		made := &corev1.Secret{ObjectMeta: o.meta(o.Secret, "scheduler"), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{PrivateFile: key}}
		secret, err = secrets.Create(ctx, made, metav1.CreateOptions{})
		switch {
		case err == nil:
			log.Info("created the private key", "secret", o.Secret)
		case apierrors.IsAlreadyExists(err): // another job was faster
			if secret, err = secrets.Get(ctx, o.Secret, metav1.GetOptions{}); err != nil {
				return grant.Keyring{}, err
			}
		default:
			return grant.Keyring{}, err
		}
	} else if err != nil {
		return grant.Keyring{}, err
	}
	_, ring, err := grant.ParseSigningKeys(secret.Data[PrivateFile])
	if err != nil {
		return grant.Keyring{}, fmt.Errorf("%s: %w; or delete the Secret, and run this again", PrivateFile, err)
	}
	return ring, nil
}

func (o Objects) public(ctx context.Context, client kubernetes.Interface, ring grant.Keyring, log *slog.Logger) error {
	configMaps := client.CoreV1().ConfigMaps(o.Namespace)
	current, err := configMaps.Get(ctx, o.ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		made := &corev1.ConfigMap{ObjectMeta: o.meta(o.ConfigMap, "agent"), Data: map[string]string{PublicFile: string(ring.PEM())}}
		_, err = configMaps.Create(ctx, made, metav1.CreateOptions{})
		if err == nil {
			log.Info("created the public keys", "configmap", o.ConfigMap, "keys", ring.String())
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		current, err = configMaps.Get(ctx, o.ConfigMap, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	known, err := grant.ParsePublicKeys([]byte(current.Data[PublicFile]))
	if err == nil && known.Contains(ring) {
		return nil
	}
	if current.Data == nil {
		current.Data = map[string]string{}
	}
	current.Data[PublicFile] = string(ring.PEM())
	if _, err := configMaps.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
		return err
	}
	log.Warn("replaced the public keys, which were not those of the private keys", "configmap", o.ConfigMap, "keys", ring.String())
	return nil
}

func (o Objects) meta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: o.Namespace, Labels: map[string]string{
		"app.kubernetes.io/name": "gpuslice", "app.kubernetes.io/component": component,
	}}
}
