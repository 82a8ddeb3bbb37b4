// Package atomicfile replaces files so that a reader finds the old content or the new content, and never a part of it.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// Write replaces the file at path. Its mode is perm, whatever the umask is. A crash of the machine can lose the change.
func Write(path string, data []byte, perm fs.FileMode) error {
	return place(path, perm, 0, func(f *os.File) error { _, err := f.Write(data); return err })
}

// WriteSync replaces the file at path, and returns when the change is on the disk.
func WriteSync(path string, data []byte, perm fs.FileMode) error {
	err := place(path, perm, 0, func(f *os.File) error {
		_, err := f.Write(data)
		return errors.Join(err, f.Sync())
	})
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	return err
}

// Create makes a file with what fill writes. If the file exists, the error is fs.ErrExist.
func Create(path string, perm fs.FileMode, fill func(*os.File) error) error {
	return place(path, perm, unix.RENAME_NOREPLACE, fill)
}

// place uses renameat2 and package rawfile, because package os makes more system calls.
func place(path string, perm fs.FileMode, flags uint, fill func(*os.File) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	f, err := create(path)
	if err != nil {
		return err
	}
	if err = errors.Join(f.Chmod(perm), fill(f), f.Close()); err == nil {
		if err = unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, flags); err == nil {
			return nil
		}
	}
	os.Remove(f.Name())
	return err
}

func create(path string) (*os.File, error) {
	dir, name := filepath.Split(path)
	for {
		f, err := rawfile.OpenFile(filepath.Join(dir, fmt.Sprintf("%s%s.%d", tempPrefix, name, rand.Uint32())), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}

// tempPrefix begins the names of unfinished files. A crash can leave them behind.
const tempPrefix = ".new-"

// Unfinished returns the name of the file of which an interrupted write left the file name.
func Unfinished(name string) (file string, is bool) {
	rest, is := strings.CutPrefix(name, tempPrefix)
	dot := strings.LastIndexByte(rest, '.')
	if !is || dot < 1 {
		return "", false
	}
	return rest[:dot], true
}

// RemoveUnfinished removes what interrupted writes left in a directory, of the files that match reports.
// No other process may write these files meanwhile.
func RemoveUnfinished(dir string, match func(file string) bool) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		if file, is := Unfinished(e.Name()); is && match(file) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
