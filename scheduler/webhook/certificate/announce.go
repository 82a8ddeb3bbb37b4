package certificate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
)

// Configurations writes the caBundle of two configurations; names may be empty.
type Configurations struct {
	Client     typedv1.AdmissionregistrationV1Interface
	Mutating   string
	Validating string
}

// Announce implements Announcer.
func (c Configurations) Announce(ctx context.Context, trusted []byte) error {
	var errs []error
	if c.Mutating != "" {
		errs = append(errs, announce(ctx, "mutatingwebhookconfiguration", c.Mutating, c.Client.MutatingWebhookConfigurations(), trusted,
			func(m *admissionv1.MutatingWebhookConfiguration) (all []webhook) {
				for _, w := range m.Webhooks {
					all = append(all, webhook{w.Name, w.ClientConfig.CABundle})
				}
				return all
			}))
	}
	if c.Validating != "" {
		errs = append(errs, announce(ctx, "validatingwebhookconfiguration", c.Validating, c.Client.ValidatingWebhookConfigurations(), trusted,
			func(v *admissionv1.ValidatingWebhookConfiguration) (all []webhook) {
				for _, w := range v.Webhooks {
					all = append(all, webhook{w.Name, w.ClientConfig.CABundle})
				}
				return all
			}))
	}
	return errors.Join(errs...)
}

type api[C any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (C, error)
	Patch(ctx context.Context, name string, t types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (C, error)
}

type webhook struct {
	name     string
	caBundle []byte
}

func announce[C any](ctx context.Context, kind, name string, client api[C], trusted []byte, webhooks func(C) []webhook) error {
	found, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	if patch := bundlePatch(webhooks(found), trusted); patch != nil {
		if _, err := client.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("write the caBundle of %s %s: %w", kind, name, err)
		}
	}
	return nil
}

// bundlePatch returns nil for no change. A patch keeps fields that this client does not know; it
// tests names, because paths are positions.
func bundlePatch(webhooks []webhook, trusted []byte) []byte {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var patch []operation
	for i, w := range webhooks {
		if at := fmt.Sprintf("/webhooks/%d", i); !bytes.Equal(w.caBundle, trusted) {
			patch = append(patch, operation{"test", at + "/name", w.name}, operation{"add", at + "/clientConfig/caBundle", trusted})
		}
	}
	if patch == nil {
		return nil
	}
	data, _ := json.Marshal(patch)
	return data
}
