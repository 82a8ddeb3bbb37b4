package oci

import (
	"path"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/limiter"
)

// limiterDir is the limiter's directory in the container.
const limiterDir = limiter.ContainerDir

// bindMount adds no privileges and no device.
func bindMount(host, container string, options ...string) *cdispec.Mount {
	return &cdispec.Mount{
		HostPath:      host,
		ContainerPath: container,
		Type:          "bind",
		Options:       append([]string{"bind", "nosuid", "nodev"}, options...),
	}
}

// limiterMounts returns the mounts of the limiter's files. The directory is a mount, so that a container can't rename
// it, and read-only, so Populate makes the mount points below it. Only the library is executable. A container without
// the limiter keeps the others: they record its grant, also for a recovery of the ledger.
func limiterMounts(s Settings, c Container, how Enforcement) []*cdispec.Mount {
	mounts := []*cdispec.Mount{
		bindMount(limiter.FilesDir(c.Dir), limiter.ContainerDir, "ro", "noexec"),
		bindMount(s.LibraryPath, limiter.ContainerLibraryPath, "ro"),
		bindMount(limiter.UsagePath(c.Dir), limiter.ContainerUsagePath, "rw", "noexec"),
	}
	if how.preloads() {
		preload := s.PreloadPath
		if c.Rootfs != nil && c.Rootfs.Preload != "" {
			preload = mergedPreload(c.Dir)
		}
		mounts = append(mounts, bindMount(preload, limiter.ContainerPreloadPath, "ro", "noexec"))
	}
	return mounts
}

// replacedMounts returns the destinations, as the container spells them, of mounts at the paths of the edits, and at
// or below the limiter's. A mount above (/etc, /usr/lib) stays, because runtimes mount by depth.
func replacedMounts(mounts []rspec.Mount, edits *cdispec.ContainerEdits) []string {
	taken := map[string]bool{}
	limited := false
	for _, m := range edits.Mounts {
		dest := cleanDestination(m.ContainerPath)
		taken[dest] = true
		limited = limited || dest == limiterDir
	}
	var replaced []string
	for _, m := range mounts {
		dest := cleanDestination(m.Destination)
		if taken[dest] || limited && ownedDestination(dest) {
			replaced = append(replaced, m.Destination)
		}
	}
	slices.Sort(replaced)
	return slices.Compact(replaced)
}

// ownedDestination is OwnedDestination of a clean path.
func ownedDestination(dest string) bool {
	return within(dest, limiterDir) || within(dest, limiter.ContainerPreloadPath)
}

// MountsFiles reports whether the mounts have the files of the claim in dir.
func MountsFiles(mounts []rspec.Mount, dir string) bool {
	return slices.ContainsFunc(mounts, func(m rspec.Mount) bool {
		return cleanDestination(m.Destination) == limiterDir && m.Source == limiter.FilesDir(dir)
	})
}

// OwnedDestination reports whether a mount's destination is a path of the limiter's files, or below one.
func OwnedDestination(destination string) bool {
	return ownedDestination(cleanDestination(destination))
}

// within reports whether a clean path is root or below it.
func within(dest, root string) bool {
	return dest == root || strings.HasPrefix(dest, strings.TrimSuffix(root, "/")+"/")
}

// cleanDestination resolves a path in a container as a runtime does: a relative one starts at the root.
func cleanDestination(dest string) string {
	return path.Clean("/" + dest)
}
