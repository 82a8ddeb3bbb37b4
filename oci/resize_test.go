package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

const resizedGPU = "GPU-0a000000-1111-2222-3333-444455556666"

func TestResizeChangesOnlyTheAmounts(t *testing.T) {
	dir := claimDir(t)
	claim := ledger.Claim{ContainerID: "c1", CoreCeiling: 50, HighPriority: true, Shares: []grant.Share{{UUID: resizedGPU, MemoryMiB: 1000, CorePercent: 20}}}
	settings := oci.Settings{
		CorePolicy: oci.CoreForce, ContextMiB: map[string]int64{resizedGPU: 300}, Oversubscription: map[string]float64{resizedGPU: 2},
	}
	require.NoError(t, oci.Populate(dir, claim, settings))
	path := limiter.LimitsPath(dir)
	was, err := limiter.ReadLimits(path)
	require.NoError(t, err)
	residue := []uint64{77}
	require.NoError(t, limiter.UpdateResidue(dir, residue))

	claim.Shares = []grant.Share{{UUID: resizedGPU, MemoryMiB: 3000, CorePercent: 50}}
	require.NoError(t, oci.Resize(dir, claim))
	now, err := limiter.ReadLimits(path)
	require.NoError(t, err)
	want := was.Devices[0]
	want.MemoryLimitBytes, want.PhysicalBytes, want.CorePercent, want.CoreSoftPercent = 3000<<20, 1500<<20, 50, 0
	assert.Equal(t, []limiter.DeviceLimit{want}, now.Devices)
	assert.Equal(t, was.Oversubscribe, now.Oversubscribe)
	still, err := limiter.ReadResidue(path)
	require.NoError(t, err)
	assert.Equal(t, residue, still)
	recovered, err := oci.RecoverClaim(dir)
	require.NoError(t, err)
	assert.Equal(t, claim.Shares, recovered.Shares, "a recovery returns the last amounts")

	generation := now.Generation
	require.NoError(t, oci.Resize(dir, claim))
	now, err = limiter.ReadLimits(path)
	require.NoError(t, err)
	assert.Equal(t, generation, now.Generation, "no change wakes no process")
}

// A container that ran when the state directory was lost has other files mapped. Its limits
// can't be lowered, so the reservation must not be either.
func TestResizeOfARestoredClaimFails(t *testing.T) {
	dir := claimDir(t)
	claim := ledger.Claim{ContainerID: "c1", Shares: []grant.Share{{UUID: resizedGPU, MemoryMiB: 2000, CorePercent: 20}}}
	require.NoError(t, oci.NoteRestored(dir))
	require.NoError(t, oci.Populate(dir, claim, oci.Settings{}))
	require.NoError(t, oci.Resize(dir, claim), "without a change")
	less := claim
	less.Shares = []grant.Share{{UUID: resizedGPU, MemoryMiB: 1000, CorePercent: 20}}
	err := oci.Resize(dir, less)
	require.ErrorIs(t, err, oci.ErrUnknownLibraries)
	require.ErrorContains(t, err, "restart the container")
	recovered, err := oci.RecoverClaim(dir)
	require.NoError(t, err)
	assert.Equal(t, claim.Shares, recovered.Shares)
}

func TestResizeOfOtherGPUs(t *testing.T) {
	dir := claimDir(t)
	require.NoError(t, oci.Populate(dir, ledger.Claim{ContainerID: "c1", Shares: []grant.Share{{UUID: resizedGPU, MemoryMiB: 1000}}}, oci.Settings{}))
	other := grant.Share{UUID: "GPU-0b000000-1111-2222-3333-444455556666", MemoryMiB: 1000}
	err := oci.Resize(dir, ledger.Claim{ContainerID: "c1", Shares: []grant.Share{{UUID: resizedGPU, MemoryMiB: 1}, other}})
	require.ErrorContains(t, err, "have 1 GPUs, and the claim has 2")
}

// claimDir makes the directory of the claim of container c1.
func claimDir(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "c1")
	require.NoError(t, os.Mkdir(dir, 0o755))
	return dir
}
