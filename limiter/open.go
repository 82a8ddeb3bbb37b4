package limiter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// A container's process can lock every file that it can open, and hold a lease on it. So only this file opens files of a
// claim: with O_NONBLOCK, which fails instead of waiting. Nothing locks the files themselves.

var ErrLeased = errors.New("a process of the container holds a lease on it")

var errNotRegular = errors.New("not a regular file")

// Package os would make four more system calls.
type file struct {
	fd   int
	stat unix.Stat_t
}

// open opens a regular file without following links. It never waits.
func (f *file) open(path string, access int) error { return f.openWith(path, access|unix.O_NONBLOCK) }

// openPatiently waits until the kernel ended all leases (fs.lease-break-time, 45 s). Only Holder calls it, in a goroutine.
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

// Without CAP_DAC_OVERRIDE, writing needs another mode first.
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

func (f *file) same(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Dev == f.stat.Dev && st.Ino == f.stat.Ino
}

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

// createFile writes a file with all of its pages, or none.
func createFile(path string, mode uint32, content []byte) error {
	var f file
	if err := f.open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL); err != nil {
		return err
	}
	defer f.close()
	err := f.writeAt(content, 0)
	if err == nil {
		err = unix.Fchmod(f.fd, mode)
	}
	if err != nil {
		_ = unix.Unlink(path) // the first error is returned
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// A writer needs microseconds.
const lockWait = 500 * time.Millisecond

// exclusively locks a file that is not mounted into the container.
func exclusively(claimDir string, change func() error) error {
	fd, err := rawfile.Open(LockPath(claimDir), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // unlocks
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	if err := rawfile.Lock(ctx, fd); err != nil {
		return fmt.Errorf("lock %s: %w", LockPath(claimDir), err)
	}
	return change()
}

func changeLimits(claimDir, what string, change func(*limitsFile) error) error {
	err := exclusively(claimDir, func() error {
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
		return change((*limitsFile)(unsafe.Pointer(&limits[0])))
	})
	if err != nil {
		return fmt.Errorf("%s of %s: %w", what, claimDir, err)
	}
	return nil
}
