package slice

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/oci"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// CheckMain is the createRuntime hook of oci.Settings.MountCheck, with the container's state on stdin. Status 1
// refuses the container, with the reason on stderr.
func CheckMain(stdin io.Reader, stderr io.Writer) int {
	return exit(stderr, checkMounts(stdin))
}

func checkMounts(stdin io.Reader) error {
	state, err := oci.ReadState(stdin)
	if err != nil {
		return err
	}
	if err := checkState(state); err != nil {
		return fmt.Errorf("container %s: %w", oci.ShortID(state.ID), err)
	}
	return nil
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
