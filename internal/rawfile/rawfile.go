// Package rawfile reads and writes regular files, and those of /proc and /sys, without the poller of
// package os: it is for programs that run for milliseconds. A pipe would block a thread.
package rawfile

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Read is like os.ReadFile.
func Read(path string) ([]byte, error) {
	fd, err := Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	size := 512
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Size > 0 && st.Size < 1<<30 {
		size = int(st.Size)
	}
	data := make([]byte, 0, size+1) // one more to detect the end
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return data, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if data = data[:len(data)+n]; n == 0 {
			return data, nil
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

// Write is like os.WriteFile.
func Write(path string, data []byte, mode fs.FileMode) error {
	f, err := OpenFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return cmp.Or(err, f.Close())
}

func Open(path string, flags int, mode fs.FileMode) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, uint32(mode.Perm())) })
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// OpenFile is like os.OpenFile. O_NONBLOCK is only for the open: check the type before a read.
func OpenFile(path string, flags int, mode fs.FileMode) (*os.File, error) {
	fd, err := Open(path, flags, mode)
	if err == nil && flags&unix.O_NONBLOCK != 0 {
		if err = unix.SetNonblock(fd, false); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Lock polls, because a waiting flock can't be canceled.
const (
	shortestWait = 20 * time.Microsecond
	longestWait  = time.Millisecond
)

// Lock gets the exclusive flock of an open file. Closing the file releases it.
func Lock(ctx context.Context, fd int) error {
	for wait := shortestWait; ; wait = min(2*wait, longestWait) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process holds it: %w", context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}
