// Package atomicfile replaces files so that a reader finds the old content or the new content, and never a part of it.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write replaces the file at path. Its mode is perm, whatever the umask is. A crash of the machine can lose the change.
func Write(path string, data []byte, perm fs.FileMode) error { return write(path, data, perm, false) }

// WriteSync replaces the file at path, and returns when the change is on the disk.
func WriteSync(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, true)
}

func write(path string, data []byte, perm fs.FileMode, sync bool) (err error) {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(filepath.Clean(dir), tempPrefix+name+".")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(perm); err != nil {
		return err
	}
	if sync {
		if err = f.Sync(); err != nil {
			return err
		}
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil || !sync {
		return err
	}
	return syncDir(filepath.Clean(dir))
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
