package oci

import (
	"fmt"
	"path/filepath"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// RecoverShares reads shares from the limits file, for a damaged ledger entry. The file must have the identity of the
// directory's name, the container's ID.
func RecoverShares(dir string) ([]grant.Share, error) {
	limits, err := limiter.ReadLimitsOf(dir, filepath.Base(dir))
	if err != nil {
		return nil, fmt.Errorf("recover the shares in %s: %w", dir, err)
	}
	shares := make([]grant.Share, 0, len(limits.Devices))
	for _, d := range limits.Devices {
		shares = append(shares, grant.Share{
			UUID: d.UUID, MemoryMiB: int64(d.MemoryLimitBytes / bytesPerMiB), CorePercent: int(d.CorePercent),
		})
	}
	return shares, nil
}
