package slice

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// CheckMain is the createRuntime hook of the NRI plugin's containers (oci.Settings.MountCheck),
// with the container's state on stdin. It returns the exit status: 0 if the limiter's files are
// in their places; 1 to refuse the container, with the reason on stderr.
func CheckMain(stdin io.Reader, stderr io.Writer) int {
	err := checkMounts(stdin)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "gpuslice: %v\n", err)
	return 1
}

func checkMounts(stdin io.Reader) error {
	var state rspec.State
	if err := json.NewDecoder(io.LimitReader(stdin, maxInput)).Decode(&state); err != nil {
		return fmt.Errorf("read the container's state: %w", err)
	}
	spec, err := readSpec(state.Bundle)
	if err == nil {
		var libraries string
		var root string
		if libraries, err = os.Executable(); err == nil {
			root, err = rootWith(limiterFiles(spec, filepath.Dir(libraries)), state, spec)
		}
		if err == nil {
			err = checkNoLinks(root)
		}
	}
	if err != nil {
		return fmt.Errorf("container %s: %w", short(state.ID), err)
	}
	return nil
}

// checkNoLinks refuses an image in which the limiter's directory is a link: unlike a mount, a
// process of the container could replace it.
func checkNoLinks(root string) error {
	dir, err := unix.Open(filepath.Join(root, limiter.ContainerDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s in the container is not the directory that gpuslice mounts there: remove the link from the image (%w)", limiter.ContainerDir, err)
	}
	return unix.Close(dir)
}

// limiterFiles returns the mounts of a spec on the limiter's paths, and from the directory of
// its libraries.
func limiterFiles(spec *rspec.Spec, libraries string) []File {
	var files []File
	for _, m := range spec.Mounts {
		if oci.OwnedDestination(m.Destination) || filepath.Dir(m.Source) == libraries {
			files = append(files, File{m.Source, m.Destination})
		}
	}
	return files
}
