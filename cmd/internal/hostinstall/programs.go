package hostinstall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/oci"
)

var (
	errFull     = unix.ENOSPC
	errReadOnly = unix.EROFS
)

// runtimeProgram and library are what a folder of --from has.
const (
	runtimeProgram = "gpuslice-runtime"
	library        = "libvgpu.so"
)

// programs installs the runtime's program, if it is to be copied, and the limiter's
// library: before the configuration names them.
func (j *job) programs() error {
	if err := j.runtime(); err != nil {
		return err
	}
	return j.library()
}

func (j *job) runtime() error {
	real, err := j.host.real(j.RuntimePath)
	if err != nil {
		return err
	}
	if j.From == "" {
		info, err := os.Stat(real)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			return fmt.Errorf("%s is not a program of this host: install it, name it by --runtime-path, or copy it by --from", j.RuntimePath)
		}
		return nil
	}
	source, err := firstOf(j.From, runtimeProgram, "bin")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	before, err := j.host.read(j.RuntimePath)
	if err != nil {
		return err
	}
	e := edit{path: j.RuntimePath, before: before, after: data}
	if !e.changes() {
		return nil
	}
	if j.DryRun {
		fmt.Fprintf(j.out, "would copy %s to %s\n", source, j.RuntimePath)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		return err
	}
	if err := replace(real, data, source); err != nil {
		return fmt.Errorf("%w%s", err, hint(err))
	}
	if err := os.Chmod(real, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "installed  %s\n", j.RuntimePath)
	return nil
}

func (j *job) library() error {
	source := j.Library
	if j.From != "" {
		var err error
		if source, err = firstOf(j.From, library, "lib"); err != nil {
			return err
		}
	}
	dir, err := j.host.realDir(j.LibraryDir)
	if err != nil {
		return err
	}
	installed, err := filepath.Glob(filepath.Join(dir, "libvgpu-*.so"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(source); err != nil && j.From == "" && len(installed) > 0 {
		return nil // it is installed, and there is no other one to install
	}
	if j.DryRun {
		fmt.Fprintf(j.out, "would install %s into %s\n", source, j.LibraryDir)
		return nil
	}
	lib, _, err := oci.InstallLibrary(source, dir)
	if err != nil {
		return fmt.Errorf("%w%s", err, hint(err))
	}
	if !slices.Contains(installed, lib) {
		fmt.Fprintf(j.out, "installed  %s\n", j.host.inside(lib))
	}
	return nil
}

// firstOf finds a file in a folder, or in a folder of it.
func firstOf(dir, name, sub string) (string, error) {
	for _, p := range []string{filepath.Join(dir, name), filepath.Join(dir, sub, name)} {
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s has neither %s nor %s: name the folder that `make build` makes, or an unpacked release", dir, name, filepath.Join(sub, name))
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
