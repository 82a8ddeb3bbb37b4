package noderegister

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What another manager wrote is never taken for ours.
func FuzzOwnedBy(f *testing.F) {
	f.Add([]byte(`{"f:metadata":{"f:annotations":{"f:gpuslice.io/node-gpus":{},".":{}},"f:labels":{"f:a":{}}}}`), "us", "")
	f.Add([]byte(`{"f:metadata":[]}`), "them", "status")
	f.Fuzz(func(t *testing.T, fields []byte, manager, subresource string) {
		owned := ownedBy([]metav1.ManagedFieldsEntry{{Manager: manager, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(string(fields))}}, "us")
		if manager != "us" || subresource != "" {
			require.Empty(t, owned.labels)
			require.Empty(t, owned.annotations)
		}
		require.NotContains(t, owned.annotations, ".")
	})
}
