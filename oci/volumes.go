package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

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
