package harness

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// nvidiaMajor is the major number of the driver's device nodes.
const nvidiaMajor = 195

// LimitedOrNone checks an OCI spec for what must never be: a GPU without all of its limits, or limits without
// a GPU. It reports whether there is a GPU.
func LimitedOrNone(spec *rspec.Spec, stateDir string) (limited bool, err error) {
	for _, d := range spec.Linux.Devices {
		limited = limited || strings.HasPrefix(d.Path, "/dev/nvidia") || d.Major == nvidiaMajor
	}
	for _, r := range spec.Linux.Resources.Devices {
		limited = limited || r.Allow && r.Major != nil && *r.Major == nvidiaMajor
	}
	mounts := map[string]rspec.Mount{}
	for _, m := range spec.Mounts {
		mounts[filepath.Clean(m.Destination)] = m // the last one is what the container sees
	}
	files, ours := mounts["/.gpuslice"]
	ours = ours && strings.HasPrefix(files.Source, stateDir+"/containers/")
	if limited != ours {
		return limited, fmt.Errorf("a GPU: %v, its limits: %v", limited, ours)
	}
	if !limited {
		return false, nil
	}
	var errs []error
	// It is loaded by the preload, or in front of the driver's library.
	front := strings.HasPrefix(filepath.Base(mounts[driverDir+"/libcuda.so.1"].Source), "libvgpu-cuda-") &&
		mounts["/.gpuslice/driver/cuda"].Source != ""
	for destination, ok := range map[string]func(rspec.Mount) bool{
		"/.gpuslice": func(m rspec.Mount) bool { return slices.Contains(m.Options, "ro") },
		"/.gpuslice/usage": func(m rspec.Mount) bool {
			return filepath.Dir(m.Source) == files.Source
		},
		"/.gpuslice/libvgpu.so": func(m rspec.Mount) bool {
			return strings.HasPrefix(filepath.Base(m.Source), "libvgpu-") && slices.Contains(m.Options, "ro")
		},
		"/etc/ld.so.preload": func(m rspec.Mount) bool {
			return front && m.Source == "" || filepath.Base(m.Source) == "ld.so.preload" && slices.Contains(m.Options, "ro")
		},
	} {
		if m := mounts[destination]; !ok(m) {
			errs = append(errs, fmt.Errorf("%s is mounted from %q with %v", destination, m.Source, m.Options))
		}
	}
	return true, errors.Join(errs...)
}
