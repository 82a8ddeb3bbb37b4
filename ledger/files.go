package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

const (
	containersName = "containers"
	lockName       = "lock"
	generationName = "generation"
)

type ledgerFiles struct {
	lock    *os.File
	counter *os.File
}

func openFiles(dir string) (*ledgerFiles, error) {
	if err := makeDirectories(dir); err != nil {
		return nil, err
	}
	lock, err := rawfile.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	counter, err := rawfile.OpenFile(filepath.Join(dir, generationName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		_ = lock.Close() // the first error is returned
		return nil, fmt.Errorf("open the generation: %w", err)
	}
	return &ledgerFiles{lock: lock, counter: counter}, nil
}

func makeDirectories(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the directory: %w", err)
	}
	// Only root looks inside: a container's usage file is writable by its user.
	if err := os.MkdirAll(filepath.Join(dir, containersName), 0o700); err != nil {
		return fmt.Errorf("create the directory: %w", err)
	}
	return nil
}

func (f *ledgerFiles) close() error {
	return errors.Join(f.lock.Close(), f.counter.Close())
}

func (f *ledgerFiles) flock(ctx context.Context) error {
	if err := rawfile.Lock(ctx, int(f.lock.Fd())); err != nil {
		return fmt.Errorf("lock %s: %w", f.lock.Name(), err)
	}
	return nil
}

func (f *ledgerFiles) unlock() {
	_ = unix.Flock(int(f.lock.Fd()), unix.LOCK_UN) // fails only for a closed file, which holds no lock
}

func (f *ledgerFiles) inPlace() bool {
	return isAt(int(f.lock.Fd()), f.lock.Name(), 0) && isAt(int(f.counter.Fd()), f.counter.Name(), 0)
}

// isAt returns whether path names the open file. flags are those of fstatat.
func isAt(fd int, path string, flags int) bool {
	var open, named unix.Stat_t
	return unix.Fstat(fd, &open) == nil && unix.Fstatat(unix.AT_FDCWD, path, &named, flags) == nil && open.Dev == named.Dev && open.Ino == named.Ino
}

// generation reads the counter. An empty file is generation 0; a truncated one is odd, so that everything is
// read again.
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

func (f *ledgerFiles) setGeneration(generation uint64) error {
	var cell [8]byte
	binary.LittleEndian.PutUint64(cell[:], generation)
	n, err := unix.Pwrite(int(f.counter.Fd()), cell[:], 0)
	if err == nil && n != len(cell) {
		err = unix.ENOSPC
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.counter.Name(), err)
	}
	return nil
}
