package oci

import (
	"path"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/limiter"
)

// limiterDir is the container's directory of the limiter. Nothing else is mounted there.
const limiterDir = limiter.ContainerDir

// bindMount is a mount that gains no privileges and makes no device.
func bindMount(host, container string, options ...string) *cdispec.Mount {
	return &cdispec.Mount{
		HostPath:      host,
		ContainerPath: container,
		Type:          "bind",
		Options:       append([]string{"bind", "nosuid", "nodev"}, options...),
	}
}

// limiterMounts returns the mounts of the limiter's files. The directory is a mount itself, so
// that it can't be renamed in the container. It is read-only, so Populate makes the mount
// points below it. The library alone is mapped as code, so
// it alone may be executed. A container that is not held by a preload lacks the one
// that has the library loaded so. An uncontrolled one keeps the others: they say what
// it was granted, to people and to who rebuilds the ledger.
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

// replacedMounts are the destinations, as the container spells them, of mounts
// that have to go so that the edits' win: those on the same path, and those on
// or below the limiter's own.
//
// A mount above (/etc, /usr/lib) stays: ours are deeper, and a runtime mounts
// by depth.
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

// ownedDestination says whether a clean path is the limiter's or below it.
func ownedDestination(dest string) bool {
	return within(dest, limiterDir) || within(dest, limiter.ContainerPreloadPath)
}

// MountsFiles says whether these mounts have the files of the claim in the directory.
func MountsFiles(mounts []rspec.Mount, dir string) bool {
	return slices.ContainsFunc(mounts, func(m rspec.Mount) bool {
		return cleanDestination(m.Destination) == limiterDir && m.Source == limiter.FilesDir(dir)
	})
}

// OwnedDestination says whether a mount's destination, however it is spelled, is
// where the limiter's files are, or below.
func OwnedDestination(destination string) bool {
	return ownedDestination(cleanDestination(destination))
}

// within says whether a clean path is root or below it.
func within(dest, root string) bool {
	return dest == root || strings.HasPrefix(dest, strings.TrimSuffix(root, "/")+"/")
}

// cleanDestination is a path inside a container as a runtime resolves it: a
// relative one starts at the root.
func cleanDestination(dest string) string {
	return path.Clean("/" + dest)
}
