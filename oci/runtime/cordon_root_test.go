//go:build root

package ociruntime

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A new container gets no cordoned GPU, and the error lists it.
func TestCordonedGPU(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.ledger.Cordon(t.Context(), gpu0))
	err := b.make(b.bundle(t, "docker-20"))
	require.ErrorContains(t, err, "cordoned GPUs: "+gpu0+" (gpuslice uncordon)")
	require.Empty(t, b.claims(t))

	require.NoError(t, b.ledger.Uncordon(t.Context(), gpu0))
	require.NoError(t, b.make(b.bundle(t, "docker-20")))
	require.Len(t, b.claims(t), 1)
}
