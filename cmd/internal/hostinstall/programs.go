package hostinstall

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/oci"
)

// Files in From. gpuslice-runtime runs the gpuslice in its own directory.
const (
	runtimeProgram = "gpuslice-runtime"
	cliProgram     = "gpuslice"
	library        = "libvgpu.so"
)

// programs installs the programs, if From is set, and the limiter's libraries.
func (j *job) programs() error {
	if j.From == "" {
		if err := j.isProgram(j.RuntimePath); err != nil {
			return err
		}
		return j.libraries(j.Library)
	}
	for name, path := range map[string]string{
		runtimeProgram: j.RuntimePath,
		cliProgram:     filepath.Join(filepath.Dir(j.RuntimePath), cliProgram),
	} {
		source, err := firstOf(j.From, name, ".", "bin")
		if err != nil {
			return err
		}
		if err := j.program(source, path); err != nil {
			return fmt.Errorf("copy %s to %s: %w%s", source, path, err, hint(err))
		}
	}
	source, err := firstOf(j.From, library, ".", "lib/gpuslice", "lib")
	if err != nil {
		return err
	}
	return j.libraries(source)
}

func (j *job) isProgram(path string) error {
	real, err := j.host.real(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not a program on this host: install it, set --runtime-path to its path, or copy it with --from", path)
	}
	return nil
}

func (j *job) program(source, path string) error {
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	have, err := j.host.read(path)
	if err != nil || bytes.Equal(have, data) {
		return err
	}
	if j.DryRun {
		fmt.Fprintf(j.out, "would copy %s to %s\n", source, path)
		return nil
	}
	real, err := j.host.real(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		return err
	}
	if err := atomicfile.WriteSync(real, data, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "installed  %s\n", path)
	return nil
}

// libraries installs the limiter's libraries, with a hash in the name.
func (j *job) libraries(source string) error {
	dir, err := j.host.real(j.LibraryDir)
	if err != nil {
		return err
	}
	before, err := filepath.Glob(filepath.Join(dir, "libvgpu-*.so"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(source); err != nil && j.From == "" && len(before) > 0 {
		return nil // they are installed
	}
	if j.DryRun {
		fmt.Fprintf(j.out, "would install %s into %s\n", source, j.LibraryDir)
		return nil
	}
	lib, _, err := oci.InstallLibrary(source, dir)
	if err != nil {
		return fmt.Errorf("%w%s", err, hint(err))
	}
	fronts, err := oci.InstallStubs(source, dir)
	if err != nil {
		return fmt.Errorf("%w%s", err, hint(err))
	}
	for _, l := range []string{lib, fronts.CUDA, fronts.NVML} {
		if !slices.Contains(before, l) {
			fmt.Fprintf(j.out, "installed  %s\n", j.host.inside(l))
		}
	}
	return nil
}

func firstOf(dir, name string, subs ...string) (string, error) {
	var tried []string
	for _, sub := range subs {
		p := filepath.Join(dir, sub, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
			return p, nil
		}
		tried = append(tried, p)
	}
	return "", fmt.Errorf("%s not found: set --from to the directory that `make build` creates, or to an unpacked release", strings.Join(tried, ", "))
}
