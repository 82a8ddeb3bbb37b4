package limiter

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// WriteLimits makes a limits file: complete or not at all, mode 0444, its mode
// not subject to the umask. It replaces a file at path; a container that has the
// old one mapped keeps the old one, use UpdateLimits for that.
func WriteLimits(path string, l Limits) error {
	if err := l.validate(); err != nil {
		return fmt.Errorf("write limits %s: %w", path, err)
	}
	file, err := encodeLimits(l, 1)
	if err != nil {
		return fmt.Errorf("write limits %s: %w", path, err)
	}
	if err := place(path, 0o444, 0, func(f *os.File) error {
		_, err := f.Write(file)
		return err
	}); err != nil {
		return fmt.Errorf("write limits %s: %w", path, err)
	}
	return nil
}

// ReadLimits reads a limits file and checks all of it.
func ReadLimits(path string) (Limits, error) {
	f, err := rawfile.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return Limits{}, fmt.Errorf("read limits: %w", err)
	}
	defer f.Close()
	file, err := io.ReadAll(io.LimitReader(f, limitsSize+1))
	if err != nil {
		return Limits{}, fmt.Errorf("read limits %s: %w", path, err)
	}
	l, err := decodeLimits(file)
	if err != nil {
		return Limits{}, fmt.Errorf("read limits %s: %w", path, err)
	}
	return l, nil
}

// UpdateLimits changes the numbers of a limits file in place, so that running
// containers follow. The cards, their order, Oversubscribe and what UpdateCores has
// written stay as they are.
// The file may come from a writer that was killed half-way.
func UpdateLimits(path string, l Limits) error {
	if err := updateLimits(path, l); err != nil {
		return fmt.Errorf("update limits %s: %w", path, err)
	}
	return nil
}

func updateLimits(path string, l Limits) error {
	if err := l.validate(); err != nil {
		return err
	}
	want, err := encodeLimits(l, 0)
	if err != nil {
		return err
	}
	return withMapped(path, func(file []byte) error { return rewrite(file, want, len(l.Devices)) })
}

// withMapped gives change a limits file as it is mapped by others too, one writer at a time.
func withMapped(path string, change func(file []byte) error) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) {
		// Its mode is for containers, which have it mounted read-only anyway; an agent without
		// CAP_DAC_OVERRIDE is bound by it too, and owns the file.
		if err = os.Chmod(path, 0o644); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR, 0)
		}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil { // released with f
		return fmt.Errorf("lock: %w", err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != limitsSize {
		return errors.Join(err, fmt.Errorf("it is not %d bytes long", limitsSize))
	}
	file, err := unix.Mmap(int(f.Fd()), 0, limitsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	defer unix.Munmap(file) //nolint:errcheck // of a mapping made above
	return change(file)
}

// rewrite brings the records of a mapped file to those of want.
func rewrite(file, want []byte, count int) error {
	if string(file[:limitsOffGen]) != string(want[:limitsOffGen]) ||
		string(file[limitsOffFlags:limitsHeaderSize]) != string(want[limitsOffFlags:limitsHeaderSize]) {
		return errors.New("its header is wrong, or it has another number of cards or another oversubscription")
	}
	for i := range count {
		is, be := recordAt(file, i)[recordOffUUID:recordOffMemory], recordAt(want, i)[recordOffUUID:recordOffMemory]
		if string(is) != string(be) {
			return fmt.Errorf("record %d is of card %s, not %s", i, formatUUID(is, false), formatUUID(be, false))
		}
	}
	for i := range count {
		keepCores(recordAt(want, i), recordAt(file, i))
		rewriteRecord(recordAt(file, i), recordAt(want, i))
	}
	atomic.AddUint64((*uint64)(unsafe.Pointer(&file[limitsOffGen])), 1)
	return nil
}

// rewriteRecord follows the protocol that the library reads by: the sequence is
// odd while the bytes change. One that is odd already is a dead writer's.
func rewriteRecord(r, want []byte) {
	sequence := (*uint32)(unsafe.Pointer(&r[recordOffSequence]))
	now := atomic.LoadUint32(sequence)
	if now%2 == 0 && string(r[recordOffCRC:]) == string(want[recordOffCRC:]) {
		return
	}
	odd := now | 1
	atomic.StoreUint32(sequence, odd)
	copy(r[recordOffCRC:], want[recordOffCRC:])
	atomic.StoreUint32(sequence, odd+1)
}

// place writes a file beside path and renames it there; flags are renameat2's.
func place(path string, mode os.FileMode, flags uint, fill func(*os.File) error) (err error) {
	f, err := createBeside(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	err = errors.Join(fill(f), f.Chmod(mode), f.Close())
	if err != nil {
		return err
	}
	// Not os.Rename, which looks at the target first: a container's creation waits.
	if err := unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, flags); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	return nil
}

// createBeside makes a hidden file of a new name in the folder of path.
func createBeside(path string) (*os.File, error) {
	for {
		name := fmt.Sprintf("%s/.%s-%08x", filepath.Dir(path), filepath.Base(path), rand.Uint32())
		f, err := rawfile.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, os.ErrExist) {
			return f, err
		}
	}
}
