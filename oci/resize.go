package oci

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// Resize brings the limits file in a running container's folder to the claim's shares, for
// grant.Ledger.Resize: its processes follow with their next call. Only the amounts change;
// what the node's settings were when the container was created stays, for it was created with them.
// A file whose writer was killed half-way is limiter.ErrHalfWritten: Populate, with the
// node's settings, writes it anew.
func Resize(dir string, claim grant.Claim) error {
	path := filepath.Join(dir, limitsFile)
	limits, err := limiter.ReadLimits(path)
	if err != nil {
		return err
	}
	if len(limits.Devices) != len(claim.Shares) {
		return fmt.Errorf("limits %s are of %d cards, and the claim of %d", path, len(limits.Devices), len(claim.Shares))
	}
	changed := false
	for i, share := range claim.Shares {
		old := limits.Devices[i]
		limits.Devices[i] = resized(old, share, claim.CoreCeiling)
		changed = changed || limits.Devices[i] != old
	}
	if !changed {
		return nil
	}
	return limiter.UpdateLimits(path, limits)
}

// ResizeOrPopulate is Resize, and Populate where the file was left half-written.
func ResizeOrPopulate(dir string, claim grant.Claim, s Settings) error {
	err := Resize(dir, claim)
	if errors.Is(err, limiter.ErrHalfWritten) {
		return Populate(dir, claim, s)
	}
	return err
}

// resized is the limit of a card for the share. Of oversubscribed memory the same part lies on the card.
func resized(d limiter.DeviceLimit, share grant.Share, ceiling int) limiter.DeviceLimit {
	memory := uint64(share.MemoryMiB) * bytesPerMiB
	if d.PhysicalBytes > 0 && memory != d.MemoryLimitBytes {
		part := float64(d.PhysicalBytes) / float64(d.MemoryLimitBytes)
		d.PhysicalBytes = min(max(uint64(float64(memory)*part), 1), memory)
	}
	d.MemoryLimitBytes = memory
	d.CorePercent = uint32(share.CorePercent)
	d.CoreSoftPercent = softPercent(share, ceiling)
	return d
}
