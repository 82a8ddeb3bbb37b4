package slice

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

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// limitedOtherwise says whether the container has a claim of its own already, of the
// runtime wrapper or the NRI plugin, whose limits it mounts. Its spec's word is not
// enough.
func limitedOtherwise(ctx context.Context, stateDir, id string, spec *rspec.Spec) (bool, error) {
	own := filepath.Join(stateDir, "containers", id, limitsName)
	if !slices.ContainsFunc(spec.Mounts, func(m rspec.Mount) bool {
		return path.Clean(m.Destination) == limiter.ContainerLimitsPath && m.Source == own
	}) {
		return false, nil
	}
	ledger, err := grant.OpenReadOnly(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now, err := ledger.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(now.Claims(), func(c grant.Claim) bool { return c.ContainerID == id }), nil
}

// checkSpec refuses a container that has cards beyond the slice's, which would have no
// limits.
func checkSpec(s Slice, c oci.Container) error {
	c.Majors = oci.HostDriverMajors()
	var granted []rspec.LinuxDevice
	for _, n := range s.Nodes {
		granted = append(granted, rspec.LinuxDevice{Path: n.Path, Major: n.Major, Minor: n.Minor})
	}
	if reason, holds := oci.HoldsMore(c, granted); holds {
		return fmt.Errorf("%s beside the slice, which would have no limits: start the container with the slice alone", reason)
	}
	return nil
}

// checkFiles looks whether the limiter's files are in the container where they have to
// be. An image's links, a volume, or a second slice could have something else there; so
// has a container that was begun before the slice got new files.
func checkFiles(s Slice, state rspec.State, spec *rspec.Spec) error {
	if spec.Root == nil || state.Pid <= 0 {
		return fmt.Errorf("its state says no process (%d) or its bundle no root folder: is this a createRuntime hook?", state.Pid)
	}
	rootfs := spec.Root.Path
	if !filepath.IsAbs(rootfs) {
		rootfs = filepath.Join(state.Bundle, rootfs)
	}
	// A runtime calls the hook before it changes the root folder, with the mounts made
	// in the container's namespace. One that calls it after is right too.
	inside := "/proc/" + strconv.Itoa(state.Pid) + "/root"
	var first error
	for _, root := range []string{inside + rootfs, inside} {
		err := checkRoot(s, root)
		if err == nil {
			return checkLoader(s, root, oci.ContainerOf(state.ID, spec))
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// checkLoader refuses an image whose programs are not held by the way that the slice has,
// or that has variables which lead past it: a spec is made before anybody knows which
// image it is for.
func checkLoader(s Slice, root string, c oci.Container) error {
	facts, err := oci.RootfsFacts(root)
	if err != nil {
		return err
	}
	if s.Mode == string(oci.EnforcePreload) && (facts.Musl || !facts.Glibc) {
		return errors.New("the slice holds programs by /etc/ld.so.preload, which nothing in this image but glibc's loader reads: " +
			"set limiterMode to auto or library in the operator's config and run gpuslice cdi generate")
	}
	c.Rootfs = facts
	return oci.CheckLoading(oci.Enforcement(s.Mode), c)
}

// checkRoot is checkFiles of one folder.
func checkRoot(s Slice, dir string) error {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look into the container: %w", err)
	}
	defer root.Close()
	for _, f := range s.Files {
		if err := sameFile(root, f); err != nil {
			return err
		}
	}
	return nil
}

func sameFile(root *os.File, f File) error {
	want, err := os.Stat(f.Host)
	if err != nil {
		return fmt.Errorf("%w: run gpuslice cdi generate", err)
	}
	in, err := pathrs.OpenatInRoot(root, f.Container)
	if err != nil {
		return fmt.Errorf("the limiter's file %s is not in the container: %w", f.Container, err)
	}
	defer in.Close()
	have, err := in.Stat()
	if err != nil {
		return fmt.Errorf("the limiter's file %s in the container: %w", f.Container, err)
	}
	if !os.SameFile(want, have) {
		return fmt.Errorf("%s in the container is not the slice's file: one slice a container, no volume and no link of the image in its place; "+
			"if there is none, the slice was renewed a moment ago: start the container again", f.Container)
	}
	return nil
}
