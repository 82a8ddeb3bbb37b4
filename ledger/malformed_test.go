package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/test/granttest"
)

func TestMalformedAnnotationsAreRefused(t *testing.T) {
	cases := granttest.MalformedCases(granttest.Node{
		Name: "node-1", GPU: gpuA, Other: gpuB, Missing: gpuX, GPUMiB: 100_000,
	})
	require.GreaterOrEqual(t, len(cases), 40)
	store, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	defer store.Close()
	ctx := t.Context()
	for _, test := range cases {
		t.Run(test.Description, func(t *testing.T) {
			pod := grant.Pod{UID: "u-1", Namespace: "ns", Name: "name", Annotations: test.Annotations}
			g, err := grant.FromPod(ctx, pod, "main", "node-1", nil, nil)
			if err == nil {
				require.NotNil(t, g, "must be refused, not passed over")
				_, err = store.Claim(ctx, ledger.Claim{
					ContainerID: "c1", Owner: ledger.OwnerNRI, PodUID: pod.UID, PodNamespace: pod.Namespace, PodName: pod.Name,
					Container: g.Container, Shares: g.Shares, Source: g.Source, Position: g.Position,
				}, testGPUs(), nil)
			}
			require.ErrorIs(t, err, test.Kind)
			for _, part := range append(test.Says, "pod ns/name", `container "main"`) {
				assert.Contains(t, err.Error(), part)
			}
			assert.Less(t, len(err.Error()), 1000, "what a tenant writes must not fill the log")
		})
	}
}
