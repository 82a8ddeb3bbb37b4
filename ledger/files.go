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
	lock              *os.File
	counter           *os.File
	lockID, counterID fileID
}

type fileID struct {
	device, inode uint64
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
	files := &ledgerFiles{lock: lock, counter: counter}
	if err := files.identify(); err != nil {
		_ = files.close() // the first error is returned
		return nil, err
	}
	return files, nil
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

func (f *ledgerFiles) identify() error {
	var lock, counter unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.lock.Fd()), &lock), unix.Fstat(int(f.counter.Fd()), &counter)); err != nil {
		return fmt.Errorf("inspect the lock and the generation: %w", err)
	}
	f.lockID = fileID{uint64(lock.Dev), lock.Ino}
	f.counterID = fileID{uint64(counter.Dev), counter.Ino}
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
	var lock, counter unix.Stat_t
	if unix.Stat(f.lock.Name(), &lock) != nil || unix.Stat(f.counter.Name(), &counter) != nil {
		return false
	}
	return f.lockID == fileID{uint64(lock.Dev), lock.Ino} && f.counterID == fileID{uint64(counter.Dev), counter.Ino}
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
