package webhook

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/test/migrating"
)

// The decisions of HAMi's webhook.
func TestMigrating(t *testing.T) {
	for _, c := range migrating.Admissions(t) {
		t.Run(c.Name, func(t *testing.T) {
			request, rules := newPod(t, c.Manifest()), DefaultRules()
			if patch := ask(t, rules, "/mutate", request).Patch; len(patch) > 0 {
				request.Object.Raw = apply(t, request.Object.Raw, patch)
			}
			var pod corev1.Pod
			require.NoError(t, json.Unmarshal(request.Object.Raw, &pod))
			result := "left"
			switch {
			case !ask(t, rules, "/validate", request).Allowed:
				result = "refused"
			case pod.Spec.SchedulerName == rules.SchedulerName:
				result = "placed"
			}
			require.Equal(t, c.Expected(), result)
		})
	}
}
