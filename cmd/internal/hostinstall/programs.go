package hostinstall

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/oci"
)

var (
	errFull     = unix.ENOSPC
	errReadOnly = unix.EROFS
)

// What a directory of --from has. The runtime asks gpuslice, which it looks for beside
// itself, for the GPUs.
const (
	runtimeProgram = "gpuslice-runtime"
	cliProgram     = "gpuslice"
	library        = "libvgpu.so"
)

// programs installs the programs, if they are to be copied, and the limiter's
// libraries: before the configuration names them.
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

// isProgram wants a program where nothing is to be copied to.
func (j *job) isProgram(path string) error {
	real, err := j.host.real(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not a program of this host: install it, name it by --runtime-path, or copy it by --from", path)
	}
	return nil
}

// program copies one: by a rename, for it may run.
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
	if err := place(real, data, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "installed  %s\n", path)
	return nil
}

// libraries installs the limiter's, under names made of their content.
func (j *job) libraries(source string) error {
	dir, err := j.host.realDir(j.LibraryDir)
	if err != nil {
		return err
	}
	before, err := filepath.Glob(filepath.Join(dir, "libvgpu-*.so"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(source); err != nil && j.From == "" && len(before) > 0 {
		return nil // they are installed, and there are no others to install
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

// firstOf finds a file in one of a directory's directories.
func firstOf(dir, name string, subs ...string) (string, error) {
	var tried []string
	for _, sub := range subs {
		p := filepath.Join(dir, sub, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
			return p, nil
		}
		tried = append(tried, p)
	}
	return "", fmt.Errorf("there is no %s: name the directory that `make build` makes, or an unpacked release, by --from", strings.Join(tried, ", nor "))
}

// record reads what was done before; an empty one if nothing was.
func (j *job) record() (record, error) {
	file := recordPath(j.Engine)
	data, err := j.host.read(file)
	if err != nil {
		return record{}, err
	}
	if data == nil {
		return record{Version: recordVersion, Engine: j.Engine}, nil
	}
	r, err := decodeRecord(data)
	if err != nil {
		return r, fmt.Errorf("%s, which says what is to be taken out again: %w", file, err)
	}
	return r, nil
}

// keep writes the record.
func (j *job) keep(r record) error {
	if j.DryRun {
		return nil
	}
	data, err := r.encode()
	if err != nil {
		return err
	}
	real, err := j.host.real(recordPath(j.Engine))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(real), 0o755)
	}
	if err == nil {
		err = replace(real, data, real)
	}
	if err != nil {
		return fmt.Errorf("keep the record of what is changed: %w%s", err, hint(err))
	}
	return nil
}

// forget removes the record.
func (j *job) forget() error {
	real, err := j.host.real(recordPath(j.Engine))
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(real), syncDir(filepath.Dir(real)))
}

// takeBack works out how a file is to be.
func (j *job) takeBack(f fileRecord) (edit, error) {
	before, err := j.host.read(f.Path)
	if err != nil {
		return edit{}, err
	}
	return f.uninstall(before)
}
