package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

const bytesPerMiB = 1 << 20

// Populate writes a claim's limits and usage files, and records its container's libraries. Mount the
// container's file system first (package vgpufs), unless no tenant can write the files. A repeated call
// changes the limits of the same GPUs in place, because containers map the files; it replaces the files of
// another container.
func Populate(dir string, claim ledger.Claim, s Settings) error {
	if err := checkShares(claim.Shares); err != nil {
		return fmt.Errorf("limits for %s: %w", dir, err)
	}
	limits := limitsOf(claim, s)
	if err := noteLibraries(dir, s.libraries()); err != nil {
		return err
	}
	return WriteFiles(dir, limits)
}

func WriteFiles(dir string, limits limiter.Limits) error {
	if err := makePlaces(dir, limits); err != nil {
		return err
	}
	// With the limits the directory is complete. An existing usage file can use all of the space.
	if _, err := os.Lstat(limiter.UsagePath(dir)); err != nil {
		if err := limiter.CreateUsage(limiter.UsagePath(dir), limits.UUIDs()); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return ensureLimits(dir, limits)
}

// makePlaces makes the mount points, and the library's link: for the runtime the directory is read-only.
func makePlaces(claimDir string, limits limiter.Limits) error {
	inDir := func(place string) string { return limiter.FilesDir(claimDir) + strings.TrimPrefix(place, limiterDir) }
	dirs := []string{limiterDir, driverDir}
	if limits.TurnID != 0 {
		dirs = append(dirs, api.ContainerTurnsDir)
		for i := range limits.Devices {
			dirs = append(dirs, turnsPlace(i))
		}
	}
	for _, dir := range dirs {
		if err := unix.Mkdir(inDir(dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the mount point %s: %w", inDir(dir), err)
		}
	}
	link := inDir(api.ContainerPreloadedPath)
	if err := unix.Symlink(path.Base(api.ContainerLibraryPath), link); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the link %s: %w", link, err)
	}
	places := []string{api.ContainerLibraryPath}
	for _, d := range drivers {
		places = append(places, driverPath(d))
	}
	for _, place := range places {
		fd, err := rawfile.Open(inDir(place), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o444)
		if err == nil {
			err = unix.Close(fd)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the mount point %s: %w", inDir(place), err)
		}
	}
	return nil
}

func ensureLimits(dir string, want limiter.Limits) error {
	have, err := limiter.ReadLimits(limiter.LimitsPath(dir))
	// With another identity, an operator moved the files.
	same := have.Identity == want.Identity && have.Oversubscribe == want.Oversubscribe && slices.Equal(have.Devices, want.Devices)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return limiter.WriteLimits(limiter.LimitsPath(dir), want)
	case errors.Is(err, limiter.ErrLeased), err == nil && same:
		return err
	case err != nil && !errors.Is(err, limiter.ErrHalfWritten):
		return fmt.Errorf("%w: remove the container: its limits can't be trusted", err)
	}
	return limiter.UpdateLimits(dir, want)
}

func limitsOf(claim ledger.Claim, s Settings) limiter.Limits {
	limits := limiter.Limits{Identity: limiter.IdentityOf(claim.ContainerID), TurnID: claim.TurnID}
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
			Policy:           claim.CorePolicy,
			CoreSoftPercent:  uint32(claim.SoftPercent(share)),
			Priority:         claim.Priority(),
			ContextBytes:     uint64(max(s.ContextMiB[share.UUID], 0)) * bytesPerMiB,
			Pages:            limiter.Pages{KiB: api.NVIDIAPages.KiB, SmallKiB: api.NVIDIAPages.SmallKiB},
			Unmeasured:       s.Unmeasured,
			MeasureFirst:     true,
		})
	}
	return limits
}

// LimiterPolicy is the node's policy, for claims.
func (s Settings) LimiterPolicy() limiter.Policy { return limiterPolicies[s.corePolicy()] }

var limiterPolicies = map[CorePolicy]limiter.Policy{
	CoreDefault: limiter.PolicyDefault,
	CoreForce:   limiter.PolicyForce,
	CoreDisable: limiter.PolicyDisable,
}
