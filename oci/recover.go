package oci

import (
	"fmt"
	"path/filepath"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// RecoverClaim reads a claim's shares and turn ID from the limits file, for a damaged ledger entry. The file must have
// the identity of the directory's name, the container's ID.
func RecoverClaim(dir string) (ledger.Claim, error) {
	limits, err := limiter.ReadLimitsOf(dir, filepath.Base(dir))
	if err != nil {
		return ledger.Claim{}, fmt.Errorf("recover the shares in %s: %w", dir, err)
	}
	claim := ledger.Claim{TurnID: limits.TurnID}
	for _, d := range limits.Devices {
		claim.Shares = append(claim.Shares, grant.Share{
			UUID: d.UUID, MemoryMiB: int64(d.MemoryLimitBytes / bytesPerMiB), CorePercent: int(d.CorePercent),
		})
		claim.CoreCeiling = max(claim.CoreCeiling, int(d.CoreSoftPercent))
		claim.CorePolicy = d.Policy
		claim.HighPriority = d.Priority == limiter.PriorityHigh
	}
	return claim, nil
}
