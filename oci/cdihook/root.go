package cdihook

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/oci"
)

const maxInput = 16 << 20

// rootDir returns the container's root directory from the bundle of its state.
func rootDir(stateFile string, stdin io.Reader) (string, error) {
	input := stdin
	if stateFile != "" && stateFile != "-" {
		f, err := os.Open(stateFile)
		if err != nil {
			return "", fmt.Errorf("read the container's state: %w", err)
		}
		defer f.Close()
		input = f
	}
	state, err := oci.ReadState(input)
	if err != nil {
		return "", fmt.Errorf("state of the container (%s): %w", cmp.Or(stateFile, "-"), err)
	}
	if !filepath.IsAbs(state.Bundle) {
		return "", fmt.Errorf("the container's state has no absolute bundle path (%q): only a container runtime can call this hook", state.Bundle)
	}
	spec, err := oci.ReadSpec(state.Bundle)
	if err != nil {
		return "", err
	}
	dir := oci.RootPath(state.Bundle, spec)
	switch dir {
	case "":
		return "", fmt.Errorf("the bundle %s has no root directory", state.Bundle)
	case "/":
		return "", fmt.Errorf("the root directory of bundle %s is the host's: not changed", state.Bundle)
	}
	return dir, nil
}

// root is a container's root directory. Its methods resolve paths inside it.
type root struct {
	dir  string
	file *os.File
}

func openRoot(dir string) (*root, error) {
	file, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	return &root{dir: dir, file: file}, nil
}

func (r *root) close() { r.file.Close() }

// open opens a path with O_PATH.
func (r *root) open(name string) (*os.File, error) {
	return pathrs.OpenatInRoot(r.file, name)
}

// makeDir opens a directory, and creates it if necessary.
func (r *root) makeDir(name string) (*os.File, error) {
	f, err := r.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = pathrs.MkdirAllHandle(r.file, name, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("directory %s of the container: %w", name, err)
	}
	return f, nil
}

// writable creates a directory if necessary, and checks that it is writable.
func (r *root) writable(name string) error {
	f, err := r.makeDir(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Access("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.W_OK); err != nil {
		return fmt.Errorf("directory %s of the container: %w", name, err)
	}
	return nil
}

func (r *root) exists(name string) bool {
	f, err := r.open(name)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// list returns the names in a directory, as far as it can be read.
func (r *root) list(name string) []string {
	f, err := r.open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	dir, err := pathrs.Reopen(f, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	return names
}

func (r *root) read(name string) ([]byte, error) {
	f, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s of the container is not a regular file", name)
	}
	file, err := pathrs.Reopen(f, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxInput))
}

// write does not change a file with that content.
func (r *root) write(name string, data []byte) error {
	if have, err := r.read(name); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return r.replace(name, func(dir int, temp string) error {
		fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		_, err = f.Write(data)
		return errors.Join(err, f.Chmod(0o644), f.Close()) // readable for every user of the container
	})
}

// symlink does not change a link with that target.
func (r *root) symlink(target, name string) error {
	if have, err := r.readlink(name); err == nil && have == target {
		return nil
	}
	return r.replace(name, func(dir int, temp string) error { return unix.Symlinkat(target, dir, temp) })
}

func (r *root) readlink(name string) (string, error) {
	dir, err := r.open(path.Dir(name))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), path.Base(name), buffer)
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

// replace creates a temporary file and renames it.
func (r *root) replace(name string, create func(dir int, temp string) error) error {
	base := path.Base(name)
	dir, err := r.makeDir(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	temp := "." + base + "." + strconv.Itoa(os.Getpid())
	_ = unix.Unlinkat(fd, temp, 0) // of a killed process with this ID
	if err := create(fd, temp); err != nil {
		return fmt.Errorf("create %s of the container: %w", name, err)
	}
	if err := unix.Renameat(fd, temp, fd, base); err != nil {
		_ = unix.Unlinkat(fd, temp, 0)
		return fmt.Errorf("create %s of the container: %w", name, err)
	}
	return nil
}
