package oci

import (
	"errors"
	"fmt"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

// Resize changes a running container's limits to the claim's shares, for ledger.Ledger.Resize. The node's
// settings stay as at the creation. After limiter.ErrHalfWritten and limiter.ErrForeign, Populate can write
// the limits. It fails after a restore of the claim: the container has older files mapped.
func Resize(dir string, claim ledger.Claim) error {
	limits, err := limiter.ReadLimits(limiter.LimitsPath(dir))
	if err != nil {
		return err
	}
	if limits.Identity != limiter.IdentityOf(claim.ContainerID) {
		return fmt.Errorf("limits in %s: %w", dir, limiter.ErrForeign)
	}
	if len(limits.Devices) != len(claim.Shares) {
		return fmt.Errorf("the limits in %s have %d GPUs, and the claim has %d", dir, len(limits.Devices), len(claim.Shares))
	}
	changed := false
	for i, share := range claim.Shares {
		old := limits.Devices[i]
		limits.Devices[i] = resized(old, share, claim.SoftPercent(share))
		changed = changed || limits.Devices[i] != old
	}
	if !changed {
		return nil
	}
	if _, err := LibrariesOf(dir); errors.Is(err, ErrUnknownLibraries) {
		return fmt.Errorf("change the limits in %s: %w: restart the container", dir, err)
	}
	return limiter.UpdateLimits(dir, limits)
}

// ResizeOrPopulate is Resize that calls populate, with the reason, if the limits must be written again.
func ResizeOrPopulate(dir string, claim ledger.Claim, populate func(reason error) error) error {
	err := Resize(dir, claim)
	if errors.Is(err, limiter.ErrHalfWritten) || errors.Is(err, limiter.ErrForeign) {
		return populate(err)
	}
	return err
}

// resized keeps the proportion of the memory that is on the GPU.
func resized(d limiter.DeviceLimit, share grant.Share, softPercent int) limiter.DeviceLimit {
	memory := uint64(share.MemoryMiB) * bytesPerMiB
	if d.PhysicalBytes > 0 && memory != d.MemoryLimitBytes {
		part := float64(d.PhysicalBytes) / float64(d.MemoryLimitBytes)
		d.PhysicalBytes = min(max(uint64(float64(memory)*part), 1), memory)
	}
	d.MemoryLimitBytes = memory
	d.CorePercent = uint32(share.CorePercent)
	d.CoreSoftPercent = uint32(softPercent)
	return d
}
