package certificate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
)

// Configurations is an Announcer: the caBundle of every webhook of these two. A name that is
// empty is left alone.
type Configurations struct {
	Client     typedv1.AdmissionregistrationV1Interface
	Mutating   string
	Validating string
}

// entry is a webhook of either kind.
type entry struct {
	name     string
	caBundle []byte
}

// Announce writes the bundle where another is. One configuration that fails doesn't keep the
// other from its bundle.
func (c Configurations) Announce(ctx context.Context, trusted []byte) error {
	return errors.Join(c.mutating(ctx, trusted), c.validating(ctx, trusted))
}

func (c Configurations) mutating(ctx context.Context, trusted []byte) error {
	if c.Mutating == "" {
		return nil
	}
	api := c.Client.MutatingWebhookConfigurations()
	found, err := api.Get(ctx, c.Mutating, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read mutatingwebhookconfiguration %s: %w", c.Mutating, err)
	}
	patch := bundlePatch(entries(found.Webhooks, func(w admissionregistrationv1.MutatingWebhook) entry {
		return entry{w.Name, w.ClientConfig.CABundle}
	}), trusted)
	if patch == nil {
		return nil
	}
	if _, err = api.Patch(ctx, c.Mutating, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the caBundle of mutatingwebhookconfiguration %s: %w", c.Mutating, err)
	}
	return nil
}

func (c Configurations) validating(ctx context.Context, trusted []byte) error {
	if c.Validating == "" {
		return nil
	}
	api := c.Client.ValidatingWebhookConfigurations()
	found, err := api.Get(ctx, c.Validating, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read validatingwebhookconfiguration %s: %w", c.Validating, err)
	}
	patch := bundlePatch(entries(found.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) entry {
		return entry{w.Name, w.ClientConfig.CABundle}
	}), trusted)
	if patch == nil {
		return nil
	}
	if _, err = api.Patch(ctx, c.Validating, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the caBundle of validatingwebhookconfiguration %s: %w", c.Validating, err)
	}
	return nil
}

func entries[W any](webhooks []W, of func(W) entry) []entry {
	all := make([]entry, len(webhooks))
	for i, w := range webhooks {
		all[i] = of(w)
	}
	return all
}

// bundlePatch is a JSON patch that gives every webhook the bundle; nil if each has it. A
// patch, not an update: fields that this client doesn't know stay. Each webhook's name is
// tested, for the patch goes by position.
func bundlePatch(webhooks []entry, trusted []byte) []byte {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var patch []operation
	for i, w := range webhooks {
		if bytes.Equal(w.caBundle, trusted) {
			continue
		}
		at := fmt.Sprintf("/webhooks/%d", i)
		patch = append(patch,
			operation{"test", at + "/name", w.name},
			operation{"add", at + "/clientConfig/caBundle", trusted}) // a []byte is base64 in JSON, as in the API
	}
	if patch == nil {
		return nil
	}
	data, err := json.Marshal(patch)
	if err != nil { // strings and bytes: there is nothing that JSON has no word for
		return nil
	}
	return data
}
