//go:build root

package oci_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

func TestResizeOfLimitsThatAreHalfWritten(t *testing.T) {
	dir := claimDir(t)
	claim := ledger.Claim{ContainerID: "c1", Shares: []grant.Share{{UUID: resizedGPU, MemoryMiB: 1000, CorePercent: 20}}}
	require.NoError(t, oci.Populate(dir, claim, oci.Settings{}))
	file, err := os.OpenFile(limiter.LimitsPath(dir), os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteAt([]byte{3}, 128) // the record's sequence is odd
	require.NoError(t, err)

	claim.Shares = []grant.Share{{UUID: resizedGPU, MemoryMiB: 2000, CorePercent: 20}}
	require.ErrorIs(t, oci.Resize(dir, claim), limiter.ErrHalfWritten)
	require.NoError(t, oci.ResizeOrPopulate(dir, claim, func(error) error { return oci.Populate(dir, claim, oci.Settings{}) }))
	recovered, err := oci.RecoverClaim(dir)
	require.NoError(t, err)
	assert.Equal(t, claim.Shares, recovered.Shares)
}
