//go:build root

package chart

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// An exemption is not a way around the isolation: labels that tenants write exempt no pod from the checks, and nothing is
// exempt from the check of forged grants.
func TestWebhookSelectors(t *testing.T) {
	type webhook struct {
		Name              string
		NamespaceSelector map[string]any `json:"namespaceSelector"`
		ObjectSelector    map[string]any `json:"objectSelector"`
	}
	found := map[string]webhook{}
	out := renderOnly(t, "admission/configurations.yaml",
		`webhook.namespaceSelector={"matchLabels":{"gpus":"ours"}}`, `webhook.objectSelector={"matchLabels":{"pod":"ours"}}`)
	for _, document := range strings.Split(out, "\n---\n") {
		var c struct {
			Kind     string
			Webhooks []webhook
		}
		require.NoError(t, yaml.Unmarshal([]byte(document), &c))
		for _, w := range c.Webhooks {
			found[c.Kind+" "+w.Name] = w
		}
	}
	require.Len(t, found, 3)
	completes := found["MutatingWebhookConfiguration requests.gpuslice.io"]
	require.Equal(t, map[string]any{"matchLabels": map[string]any{"gpus": "ours"}}, completes.NamespaceSelector)
	require.Equal(t, map[string]any{"matchLabels": map[string]any{"pod": "ours"}}, completes.ObjectSelector)
	checks := found["ValidatingWebhookConfiguration requests.gpuslice.io"]
	require.Equal(t, map[string]any{"matchLabels": map[string]any{"gpus": "ours"}}, checks.NamespaceSelector)
	require.Empty(t, checks.ObjectSelector)
	owners := found["ValidatingWebhookConfiguration annotations.gpuslice.io"]
	require.Empty(t, owners.NamespaceSelector)
	require.Empty(t, owners.ObjectSelector)
}
