package oci

import (
	"fmt"
	"path/filepath"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// RecoverShares reads what a container holds from its limits file: the ledger's
// second source where a claim's own record is damaged.
func RecoverShares(dir string) ([]grant.Share, error) {
	limits, err := limiter.ReadLimits(filepath.Join(dir, limitsFile))
	if err != nil {
		return nil, fmt.Errorf("recover shares: %w", err)
	}
	shares := make([]grant.Share, 0, len(limits.Devices))
	for _, d := range limits.Devices {
		shares = append(shares, grant.Share{
			UUID: d.UUID, MemoryMiB: int64(d.MemoryLimitBytes / bytesPerMiB), CorePercent: int(d.CorePercent),
		})
	}
	return shares, nil
}
