// Package procroot looks into the roots of other processes, by /proc/<pid>/root. What is in
// there is their container's to arrange: a link of theirs that were followed from here, as
// any path below /proc/<pid>/root is, would lead into our own root.
package procroot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Open finds a file in a process' root, by a handle that tells what it is and can't be
// read. Links on the way lead where they lead the process; a link at the end is not
// followed. root is /proc/<pid>/root.
func Open(root, name string) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	path := filepath.Join(root, name)
	fd, err := unix.Openat2(dir, strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Stat tells of such a file.
func Stat(root, name string) (st unix.Stat_t, err error) {
	f, err := Open(root, name)
	if err != nil {
		return st, err
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return st, nil
}
