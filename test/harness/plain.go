package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// Wrapper is the path of gpuslice-runtime.
func Wrapper() (string, error) { return Artefact("bin", "gpuslice-runtime") }

// runtimeConfigPath is the operator's config of the runtime wrapper.
func (m *Machine) runtimeConfigPath() string { return filepath.Join(m.Dir, "runtime.yaml") }

// WriteRuntimeConfig writes the operator's config: this machine's paths, and more lines.
func (m *Machine) WriteRuntimeConfig(more string) error {
	nvml, err := Artefact("sim", "libnvidia-ml.so.1")
	if err != nil {
		return err
	}
	text := fmt.Sprintf("stateDir: %s\nlibraryDir: %s\ncdiSpecDirs: [%s]\nnvmlLibrary: %s\nruntimes: [runc]\n%s",
		m.StateDir(), m.LibraryDir(), m.CDIDir(), nvml, more)
	// Each container reads it, so that it is never half there.
	next := m.runtimeConfigPath() + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(next, m.runtimeConfigPath())
}

// RuntimeEnv returns variables for the wrapper and NVIDIA's runtime, which inherit them from their daemon.
func (m *Machine) RuntimeEnv() []string {
	return []string{"GPUSLICE_RUNTIME_CONFIG=" + m.runtimeConfigPath(), "NVIDIA_CTK_CONFIG_FILE_PATH=" + m.nvidiaConfigPath(), "SIMGPU_STATE=" + m.SimState()}
}

// GenerateSlices writes the CDI spec of the slices that the operator's config names.
func (m *Machine) GenerateSlices(ctx context.Context) error {
	program, err := Artefact("bin", "gpuslice")
	if err != nil {
		return err
	}
	_, err = Run(ctx, m.RuntimeEnv(), program, "cdi", "generate", "--config", m.runtimeConfigPath(),
		"--output-dir", m.CDIDir(), "--state-dir", m.StateDir())
	return err
}

// debian is the path of a program of a Debian package. What else has its name on PATH is
// of another version, or another program.
func debian(program, pkg string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/usr/sbin"} {
		path := filepath.Join(dir, program)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s of Debian's package %s is not installed: run `make setup` first", program, pkg)
}

// debianPath is where daemons of Debian's packages find their helpers.
const debianPath = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// WriteRootTar writes the root file system of the test images to path, as a tar.
func WriteRootTar(path string) error {
	root, err := GlibcRoot()
	if err != nil {
		return fmt.Errorf("make the test image: %w", err)
	}
	layer, err := root.layer()
	if err != nil {
		return fmt.Errorf("make the test image's layer: %w", err)
	}
	return os.WriteFile(path, layer, 0o644)
}

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
