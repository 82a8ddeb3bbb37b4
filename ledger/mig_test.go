package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

func TestMIGDeviceHasOneContainer(t *testing.T) {
	const mig = "MIG-11111111-0000-4000-8000-000000000001"
	store, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	claim := func(id string, memory int64, cores int) error {
		_, err := store.Claim(t.Context(), ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerNRI, PodUID: id, Container: "main",
			Shares: []grant.Share{{UUID: mig, MemoryMiB: memory, CorePercent: cores}},
		}, map[string]grant.GPU{mig: {UUID: mig, MemoryMiB: 9_856, CorePercent: 100, Replicas: 1}}, nil)
		return err
	}
	require.NoError(t, claim("first", 1000, 0))
	err = claim("second", 1, 0)
	require.ErrorIs(t, err, grant.ErrOverbooked)
	require.ErrorContains(t, err, "no replica free, 1 of 1 taken")
	require.NoError(t, store.Release(t.Context(), "first"))
	require.NoError(t, claim("second", 9856, 100))
}
