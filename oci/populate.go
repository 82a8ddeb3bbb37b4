package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

const bytesPerMiB = 1 << 20

// Populate makes the limiter's two files in the folder of a claim: what the
// container may use, and where it accounts what it uses; and notes which limiter it
// has, for PruneLibraries.
//
// It may be called again. Files that are there are kept, as containers map them:
// limits of the same cards are updated in place where their numbers differ or their
// writer was killed half-way, limits of other cards are an error.
func Populate(dir string, claim grant.Claim, s Settings) error {
	if err := checkShares(claim.Shares); err != nil {
		return fmt.Errorf("limits for %s: %w", dir, err)
	}
	limits := limitsOf(claim, s)
	if err := noteLibraries(dir, s); err != nil {
		return err
	}
	// The limits come last: with them the folder is whole.
	err := limiter.CreateUsage(filepath.Join(dir, usageFile), limits.UUIDs())
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return ensureLimits(filepath.Join(dir, limitsFile), limits)
}

// ensureLimits writes a limits file, or brings one that is there to the same.
func ensureLimits(path string, want limiter.Limits) error {
	have, err := limiter.ReadLimits(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return limiter.WriteLimits(path, want)
	case errors.Is(err, limiter.ErrHalfWritten):
		return limiter.UpdateLimits(path, want)
	case err != nil:
		return fmt.Errorf("%w: remove the container, its limits can't be trusted", err)
	case have.Oversubscribe == want.Oversubscribe && slices.Equal(have.Devices, want.Devices):
		return nil
	default:
		return limiter.UpdateLimits(path, want)
	}
}

// limitsOf are shares as the limiter counts: in bytes.
func limitsOf(claim grant.Claim, s Settings) limiter.Limits {
	limits := limiter.Limits{}
	for _, share := range claim.Shares {
		memory, physical := uint64(share.MemoryMiB)*bytesPerMiB, uint64(0)
		if s.oversubscribed(share.UUID) {
			limits.Oversubscribe = true
			physical = uint64(float64(memory) / s.Oversubscription[share.UUID])
		}
		limits.Devices = append(limits.Devices, limiter.DeviceLimit{
			UUID:             share.UUID,
			MemoryLimitBytes: memory,
			PhysicalBytes:    physical,
			CorePercent:      uint32(share.CorePercent),
			Policy:           limiterPolicies[s.corePolicy()],
			CoreSoftPercent:  softPercent(share, claim.CoreCeiling),
			Priority:         priority(claim),
			ContextBytes:     uint64(max(s.ContextMiB[share.UUID], 0)) * bytesPerMiB,
		})
	}
	return limits
}

// softPercent is the soft ceiling of a share: above it, and of one that is limited.
func softPercent(share grant.Share, ceiling int) uint32 {
	if share.CorePercent == 0 || ceiling <= share.CorePercent {
		return 0
	}
	return uint32(ceiling)
}

func priority(claim grant.Claim) limiter.Priority {
	if claim.HighPriority {
		return limiter.PriorityHigh
	}
	return taskPriority
}

// limiterPolicies are the policies as the limits file has them.
var limiterPolicies = map[CorePolicy]limiter.Policy{
	CoreDefault: limiter.PolicyDefault,
	CoreForce:   limiter.PolicyForce,
	CoreDisable: limiter.PolicyDisable,
}
