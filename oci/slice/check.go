package slice

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/oci"
)

// checkSpec refuses GPUs beyond the slice's, which would have no limits.
func checkSpec(s Slice, c oci.Container) error {
	c.Majors = oci.HostDriverMajors()
	var granted []rspec.LinuxDevice
	for _, n := range s.Nodes {
		granted = append(granted, rspec.LinuxDevice{Path: n.Path, Major: n.Major, Minor: n.Minor})
	}
	if reason, has := oci.HasMoreGPUs(c, granted); has {
		return fmt.Errorf("%s beside the slice, which would have no limits: start the container with the slice only", reason)
	}
	return nil
}

// checkFiles refuses other files at the limiter's paths: by links, a volume, a second slice, or a slice renewed
// during the creation.
func checkFiles(s Slice, state rspec.State, spec *rspec.Spec) error {
	root, err := rootWith(s.Files, state, spec)
	if err != nil {
		return fmt.Errorf("%w; use one slice for a container; if the slice was renewed a moment ago, start the container again", err)
	}
	return checkLoader(s, root, oci.ContainerOf(state.ID, spec))
}

// rootWith returns the container's root if it has all files.
func rootWith(files []File, state rspec.State, spec *rspec.Spec) (root string, err error) {
	rootfs := oci.RootPath(state.Bundle, spec)
	if rootfs == "" || state.Pid <= 0 {
		return "", fmt.Errorf("its state has no process (%d) or its bundle has no root directory: is this a createRuntime hook?", state.Pid)
	}
	// Runtimes call the hook before or after they change the root directory.
	inside := "/proc/" + strconv.Itoa(state.Pid) + "/root"
	first := checkRoot(files, inside+rootfs)
	if first == nil {
		return inside + rootfs, nil
	}
	if checkRoot(files, inside) == nil {
		return inside, nil
	}
	return "", first
}

// checkLoader checks the image: it is unknown when the CDI spec is written.
func checkLoader(s Slice, root string, c oci.Container) error {
	facts, err := oci.RootfsFacts(root, c.Env)
	if err != nil {
		return err
	}
	if s.Mode == string(oci.EnforcePreload) && (facts.Musl || !facts.Glibc) {
		return errors.New("the slice loads the limiter by /etc/ld.so.preload, which only glibc's loader reads, and not every program of this image has it: " +
			"set limiterMode to auto or library in the operator's config and run gpuslice cdi generate")
	}
	c.Rootfs = facts
	return oci.CheckLoading(oci.Enforcement(s.Mode), c)
}

func checkRoot(files []File, dir string) error {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the container's root directory: %w", err)
	}
	defer root.Close()
	for _, f := range files {
		if err := sameFile(root, f); err != nil {
			return err
		}
	}
	return nil
}

func sameFile(root *os.File, f File) error {
	want, err := os.Stat(f.Host)
	if err != nil {
		return fmt.Errorf("read the limiter's file on the host: %w", err)
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
		return fmt.Errorf("%s in the container is not what gpuslice mounts there (%s): remove the volume or the link in the image that is in its place", f.Container, f.Host)
	}
	return nil
}

// CheckMain is the createRuntime hook of oci.Settings.MountCheck, with the container's state on stdin. Status 1
// refuses the container, with the reason on stderr.
func CheckMain(stdin io.Reader, stderr io.Writer) int {
	return exit(stderr, oci.WithState(stdin, checkState))
}

func checkState(state rspec.State) error {
	spec, err := oci.ReadSpec(state.Bundle)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	root, err := rootWith(limiterFiles(spec, filepath.Dir(program)), state, spec)
	if err != nil {
		return err
	}
	return checkNoLinks(root)
}

// checkNoLinks: a container could replace a link.
func checkNoLinks(root string) error {
	dir, err := unix.Open(filepath.Join(root, api.ContainerDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s in the container is not the directory that gpuslice mounts there: remove the link from the image (%w)", api.ContainerDir, err)
	}
	return unix.Close(dir)
}

// limiterFiles are at the limiter's paths, or from the directory of its libraries.
func limiterFiles(spec *rspec.Spec, libraries string) []File {
	var files []File
	for _, m := range spec.Mounts {
		if oci.OwnedDestination(m.Destination) || filepath.Dir(m.Source) == libraries {
			files = append(files, File{m.Source, m.Destination})
		}
	}
	return files
}
