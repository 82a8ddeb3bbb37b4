package grant

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	containersName = "containers"
	lockName       = "lock"
	generationName = "generation"
)

// ledgerFiles are the two files that processes agree by.
type ledgerFiles struct {
	dir     string
	lock    *os.File
	counter *os.File
}

// openFiles opens the two files, and makes them and the folders where they are
// missing.
func openFiles(dir string) (*ledgerFiles, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	// Only root looks inside: a container's usage file is writable by its user.
	if err := os.MkdirAll(filepath.Join(dir, containersName), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	counter, err := os.OpenFile(filepath.Join(dir, generationName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		lock.Close() // the first error is the one to tell
		return nil, fmt.Errorf("open the generation: %w", err)
	}
	return &ledgerFiles{dir: dir, lock: lock, counter: counter}, nil
}

func (f *ledgerFiles) close() error {
	return errors.Join(f.lock.Close(), f.counter.Close())
}

// The lock is asked for again and again, since a waiting flock can't be called
// off: first after shortestWait, then after twice the time each, at most longestWait.
const (
	shortestWait = 20 * time.Microsecond
	longestWait  = time.Millisecond
)

// flock takes the lock, or gives up when the context ends. The kernel gives it
// back when the process ends, however it ends.
func (f *ledgerFiles) flock(ctx context.Context) error {
	fd := int(f.lock.Fd())
	wait := shortestWait
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", f.lock.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s, which another process holds: %w", f.lock.Name(), context.Cause(ctx))
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

// unlock gives the lock back.
func (f *ledgerFiles) unlock() {
	_ = unix.Flock(int(f.lock.Fd()), unix.LOCK_UN) // fails only for a closed file, which holds no lock
}

// inPlace says whether the open files are still those under the ledger's path.
func (f *ledgerFiles) inPlace() bool {
	for _, file := range []*os.File{f.lock, f.counter} {
		var open, named unix.Stat_t
		if unix.Fstat(int(file.Fd()), &open) != nil || unix.Stat(file.Name(), &named) != nil ||
			open.Dev != named.Dev || open.Ino != named.Ino {
			return false
		}
	}
	return true
}

// generation reads the counter. A new file is generation 0; one that was cut
// short reads as odd, so that everything is looked at again.
func (f *ledgerFiles) generation() (uint64, error) {
	var cell [8]byte
	n, err := unix.Pread(int(f.counter.Fd()), cell[:], 0)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.counter.Name(), err)
	}
	if n != 0 && n != len(cell) {
		return 1, nil
	}
	return binary.LittleEndian.Uint64(cell[:]), nil
}

// setGeneration writes the counter.
func (f *ledgerFiles) setGeneration(generation uint64) error {
	var cell [8]byte
	binary.LittleEndian.PutUint64(cell[:], generation)
	if n, err := unix.Pwrite(int(f.counter.Fd()), cell[:], 0); err != nil || n != len(cell) {
		return fmt.Errorf("write %s: %w", f.counter.Name(), errors.Join(err, shortWrite(n)))
	}
	return nil
}

// shortWrite is the error of a counter that was not written whole.
func shortWrite(n int) error {
	if n >= 0 && n < 8 {
		return unix.ENOSPC
	}
	return nil
}
