package certificate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

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
