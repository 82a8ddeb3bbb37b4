package limiter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// A process of the container can lock every file that it can open, and can hold a lease on
// it. So only this file opens files of a claim: with O_NONBLOCK, which fails instead of waiting
// for the end of a lease. Nothing locks the files themselves.

// ErrLeased marks a file that can't be opened now: a process of the container holds a lease
// on it. Neither gpuslice nor a normal program takes one.
var ErrLeased = errors.New("a process of the container holds a lease on it")

// errNotRegular marks something else in the place of a file.
var errNotRegular = errors.New("it is not a regular file")

// file is an open file of a claim. Package os makes four more system calls for each file that
// it opens.
type file struct {
	fd   int
	stat unix.Stat_t
}

// open opens a regular file, and no link. It never waits.
func (f *file) open(path string, access int) error { return f.openWith(path, access|unix.O_NONBLOCK) }

// openPatiently opens a file for reading and writing, and waits until the kernel has ended the
// leases on it: fs.lease-break-time, 45 s. Meanwhile no new lease can be taken. Only a Holder
// calls it, in a goroutine of its own.
func (f *file) openPatiently(path string) error { return f.openWith(path, unix.O_RDWR) }

func (f *file) openWith(path string, flags int) (err error) {
	f.fd, err = rawfile.Open(path, flags|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("open %s: %w", path, ErrLeased)
	case err != nil:
		return err
	}
	if err = unix.Fstat(f.fd, &f.stat); err == nil && f.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	if err != nil {
		f.close()
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return nil
}

// openToWrite opens a limits file for reading and writing. Its mode is read-only, which an
// agent without CAP_DAC_OVERRIDE has to change; it owns the file.
func (f *file) openToWrite(path string) error {
	err := f.open(path, unix.O_RDWR)
	if errors.Is(err, fs.ErrPermission) {
		if err = os.Chmod(path, 0o644); err == nil {
			err = f.open(path, unix.O_RDWR)
		}
	}
	return err
}

func (f *file) close() { _ = unix.Close(f.fd) } // nothing is buffered

// same says whether a path names this file.
func (f *file) same(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Dev == f.stat.Dev && st.Ino == f.stat.Ino
}

// ReadAt implements io.ReaderAt.
func (f *file) ReadAt(p []byte, at int64) (n int, err error) {
	for n < len(p) {
		m, err := unix.Pread(f.fd, p[n:], at+int64(n))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return n, err
		case m == 0:
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

// lockWait is how long a writer waits for another one, which needs microseconds.
const lockWait = 500 * time.Millisecond

// alone calls change while no other process writes the claim's limits file. The file that it
// locks is not mounted into a container.
func alone(claimDir string, change func() error) error {
	fd, err := rawfile.Open(LockPath(claimDir), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // which unlocks it
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	if err := rawfile.Lock(ctx, fd); err != nil {
		return fmt.Errorf("lock %s: %w", LockPath(claimDir), err)
	}
	return change()
}

// changeLimits calls change with the claim's limits file as containers have it mapped, one
// writer at a time.
func changeLimits(claimDir string, change func(limits []byte) error) error {
	return alone(claimDir, func() error {
		var f file
		if err := f.openToWrite(LimitsPath(claimDir)); err != nil {
			return err
		}
		defer f.close()
		if f.stat.Size != limitsSize {
			return fmt.Errorf("%s: it is not %d bytes long", LimitsPath(claimDir), limitsSize)
		}
		limits, err := unix.Mmap(f.fd, 0, limitsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map %s: %w", LimitsPath(claimDir), err)
		}
		defer unix.Munmap(limits) //nolint:errcheck // of a mapping made above
		return change(limits)
	})
}

// create makes a file of a new name.
func create(name func() string) (*os.File, error) {
	for {
		f, err := rawfile.OpenFile(name(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, os.ErrExist) {
			return f, err
		}
	}
}
