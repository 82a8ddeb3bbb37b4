package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

const limiterDir = api.ContainerDir

// bindMount adds no privileges and no device.
func bindMount(host, container string, options ...string) *cdispec.Mount {
	return &cdispec.Mount{
		HostPath:      host,
		ContainerPath: container,
		Type:          "bind",
		Options:       append([]string{"bind", "nosuid", "nodev"}, options...),
	}
}

// limiterMounts mounts the directory itself, so that a container can't rename it. It is read-only, so Populate makes
// the mount points below it. A container without the limiter has them too: they record its grant.
func limiterMounts(s Settings, c Container, how Enforcement) []*cdispec.Mount {
	mounts := []*cdispec.Mount{
		bindMount(limiter.FilesDir(c.Dir), api.ContainerDir, "ro", "noexec"),
		bindMount(s.LibraryPath, api.ContainerLibraryPath, "ro"),
		bindMount(limiter.UsagePath(c.Dir), api.ContainerUsagePath, "rw", "noexec"),
	}
	if how.preloads() {
		preload := s.PreloadPath
		if c.Rootfs != nil && c.Rootfs.Preload != "" {
			preload = mergedPreload(c.Dir)
		}
		mounts = append(mounts, bindMount(preload, api.ContainerPreloadPath, "ro", "noexec"))
	}
	return mounts
}

// turnMounts have the turn files of all containers of a GPU, and the container's own for writing.
func turnMounts(shares []grant.Share, c Container) (mounts []*cdispec.Mount) {
	if c.TurnID == 0 {
		return nil
	}
	stateDir := filepath.Dir(filepath.Dir(c.Dir))
	for i, share := range shares {
		if grant.IsMIG(share.UUID) {
			continue
		}
		dir := turnsPlace(i)
		mounts = append(mounts,
			bindMount(limiter.TurnsDirOf(stateDir, share.UUID), dir, "ro", "noexec"),
			bindMount(limiter.TurnPath(stateDir, share.UUID, c.TurnID), path.Join(dir, c.TurnID.String()), "rw", "noexec"),
		)
	}
	return mounts
}

// IsTurns reports whether a place is that of turn files.
func IsTurns(place string) bool { return within(cleanDestination(place), api.ContainerTurnsDir) }

// turnsPlace is for the record of that index in the limits file.
func turnsPlace(index int) string { return path.Join(api.ContainerTurnsDir, strconv.Itoa(index)) }

// replacedMounts returns the container's mounts at the edits' paths, and at or below the limiter's. Mounts above
// (/etc) stay: runtimes mount by depth.
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

func ownedDestination(dest string) bool {
	return within(dest, limiterDir) || within(dest, api.ContainerPreloadPath)
}

// MountsFiles reports whether the mounts have the files of the claim in dir.
func MountsFiles(mounts []rspec.Mount, dir string) bool {
	return slices.ContainsFunc(mounts, func(m rspec.Mount) bool {
		return cleanDestination(m.Destination) == limiterDir && m.Source == limiter.FilesDir(dir)
	})
}

// Limited reports whether a container mounts its limits and has a claim of the owner ("": of any). The mounts are
// not sufficient.
func Limited(ctx context.Context, stateDir, id string, mounts []rspec.Mount, owner string) (bool, error) {
	claim := mountedClaim(stateDir, mounts)
	if claim == "" {
		return false, nil
	}
	now, err := ledger.Read(ctx, stateDir)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(now.Claims(), func(c ledger.Claim) bool {
		return c.ContainerID == claim && c.Has(id) && (owner == "" || c.Owner == owner)
	}), nil
}

// mountedClaim returns the ID of the claim with the files that are mounted; "": none.
func mountedClaim(stateDir string, mounts []rspec.Mount) string {
	for _, m := range mounts {
		id := filepath.Base(filepath.Dir(m.Source))
		if MountsFiles([]rspec.Mount{m}, ledger.DirOf(stateDir, id)) {
			return id
		}
	}
	return ""
}

// OwnedDestination reports whether a destination is at or below a path of the limiter.
func OwnedDestination(destination string) bool {
	return ownedDestination(cleanDestination(destination))
}

// within needs clean paths.
func within(dest, root string) bool {
	return dest == root || strings.HasPrefix(dest, strings.TrimSuffix(root, "/")+"/")
}

// cleanDestination resolves a relative path from the root, as runtimes do.
func cleanDestination(dest string) string {
	return path.Clean("/" + dest)
}

// CheckVolumes refuses a volume of the host that lacks a mount point for the edits: the runtime would make it
// on the host, such as an empty /etc/ld.so.preload with -v /etc:/etc. Volumes of an engine (…/_data) are
// exempt.
func CheckVolumes(mounts []rspec.Mount, edits *cdispec.ContainerEdits) error {
	replaced := replacedMounts(mounts, edits)
	for _, mount := range edits.Mounts {
		place := cleanDestination(mount.ContainerPath)
		if place != limiterDir && within(place, limiterDir) {
			continue // Populate makes its mount point
		}
		above, found := lowestAbove(mounts, place, replaced)
		if !found || !isBind(above) || path.Base(path.Clean(above.Source)) == "_data" {
			continue
		}
		rest, err := filepath.Rel(cleanDestination(above.Destination), place)
		if err != nil {
			return err
		}
		there, err := hasPlace(above.Source, rest)
		if err != nil {
			return fmt.Errorf("find %s in the volume %s: %w", rest, above.Source, err)
		}
		if !there {
			return fmt.Errorf("the volume %s is mounted at %s, and gpuslice mounts %s below it, for which the runtime would make %s on the host: "+
				"mount the volume at another path, or parts of it, or make that file", above.Source, above.Destination, place, filepath.Join(above.Source, rest))
		}
	}
	return nil
}

// lowestAbove returns the mount that a place is on. Replaced mounts don't count.
func lowestAbove(mounts []rspec.Mount, place string, replaced []string) (above rspec.Mount, found bool) {
	depth := -1
	for _, m := range mounts {
		dest := cleanDestination(m.Destination)
		if within(place, dest) && place != dest && !slices.Contains(replaced, m.Destination) && len(dest) >= depth {
			above, found, depth = m, true, len(dest)
		}
	}
	return above, found
}

func isBind(m rspec.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// hasPlace follows links as a runtime does: not out of source.
func hasPlace(source, rest string) (bool, error) {
	root, err := os.OpenFile(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // the runtime reports the missing volume
	}
	if err != nil {
		return false, err
	}
	defer root.Close()
	f, err := openIn(root, rest)
	if f == nil || err != nil {
		return false, err
	}
	return true, f.Close()
}
