package slice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// lock takes the lock of all slices of a state directory, which it makes.
func lock(ctx context.Context, stateDir string) (unlock func(), err error) {
	dir := filepath.Join(stateDir, dirsName)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock the slices: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the slices: %w", err)
	}
	if err := rawfile.Lock(ctx, int(f.Fd())); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the slices: %w", err)
	}
	return func() { f.Close() }, nil
}

// Sweep removes what a Put or a Remove left that was killed. Those that are at work hold the lock.
func Sweep(ctx context.Context, stateDir string) error {
	if left, err := hidden(stateDir); len(left) == 0 {
		return err
	}
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return err
	}
	defer unlock()
	left, err := hidden(stateDir)
	errs := []error{err}
	for _, name := range left {
		errs = append(errs, vgpufs.RemoveAll(Dir(stateDir, name)))
	}
	return errors.Join(errs...)
}

// Put makes a slice, or brings one that is there to the same. One that a container has
// stays as it is: then it is returned with inUse, and the change takes a Put when the
// container is gone. A claim whose container is gone without a word is given back.
func Put(ctx context.Context, stateDir string, s Slice, settings oci.Settings) (now Slice, inUse bool, err error) {
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return s, false, err
	}
	defer unlock()
	s.Version = recordVersion
	dir := Dir(stateDir, s.Name)
	c, err := compare(ctx, stateDir, s, settings)
	if err != nil {
		return s, false, err
	}
	if c.inUse && !c.same {
		return c.old, true, nil
	}
	if !c.inUse {
		if err := clearHolder(ctx, stateDir, dir, c.holder); err != nil {
			return s, false, err
		}
	}
	if c.same && (c.inUse || !marked(dir)) {
		return s, false, s.write(dir)
	}
	return s, false, build(dir, s, settings)
}

// Peek is Put that changes nothing.
func Peek(ctx context.Context, stateDir string, s Slice, settings oci.Settings) (now Slice, inUse bool, err error) {
	s.Version = recordVersion
	c, err := compare(ctx, stateDir, s, settings)
	if err == nil && c.inUse && !c.same {
		return c.old, true, nil
	}
	return s, false, err
}

// comparison is a slice as it is, against how it has to be.
type comparison struct {
	old    Slice
	same   bool
	holder *holder
	inUse  bool
}

func compare(ctx context.Context, stateDir string, s Slice, settings oci.Settings) (c comparison, err error) {
	dir := Dir(stateDir, s.Name)
	if c.old, err = Read(stateDir, s.Name); err != nil || !whole(dir) {
		return comparison{}, nil // Put builds a new one
	}
	c.same = c.old.equal(s) && samePattern(dir, s, settings)
	if c.same && !marked(dir) {
		return c, nil
	}
	c.holder, c.inUse, err = held(ctx, stateDir, s.Name)
	return c, err
}

// clearHolder gives back the claim of a container that is gone, if there is one.
func clearHolder(ctx context.Context, stateDir, dir string, h *holder) error {
	if h == nil {
		return nil
	}
	ledger, err := ledger.Open(stateDir, ledger.WithRecovery(oci.RecoverShares))
	if err != nil {
		return err
	}
	defer ledger.Close()
	return clearAway(ctx, orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}, dir, h)
}

// samePattern says whether the limits of a slice are what they would be now.
func samePattern(dir string, s Slice, settings oci.Settings) bool {
	temp, err := os.MkdirTemp("", "gpuslice-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(temp)
	if err := oci.Populate(temp, s.claim(""), settings); err != nil {
		return false
	}
	want, err := limiter.ReadLimits(limiter.LimitsPath(temp))
	have, haveErr := limiter.ReadLimits(filepath.Join(dir, patternName))
	return err == nil && haveErr == nil && want.Oversubscribe == have.Oversubscribe && slices.Equal(want.Devices, have.Devices)
}

// build makes a slice's directory again and gives it its name.
func build(dir string, s Slice, settings oci.Settings) error {
	temp, err := os.MkdirTemp(filepath.Dir(dir), newPrefix)
	if err != nil {
		return fmt.Errorf("make slice %s: %w", s.Name, err)
	}
	defer vgpufs.RemoveAll(temp) // after the exchange, the old directory
	if err := fill(temp, s, settings); err != nil {
		return fmt.Errorf("make slice %s: %w", s.Name, err)
	}
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		err = os.Rename(temp, dir)
	}
	if err != nil {
		return fmt.Errorf("make slice %s: %w", s.Name, err)
	}
	return nil
}

// fill writes a slice's files into a new directory.
func fill(dir string, s Slice, settings oci.Settings) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := vgpufs.Mount(dir); err != nil {
		return err
	}
	if err := oci.Populate(dir, s.claim(""), settings); err != nil {
		return err
	}
	pattern, err := limiter.ReadLimits(limiter.LimitsPath(dir))
	if err == nil {
		err = limiter.WriteLimits(filepath.Join(dir, patternName), pattern)
	}
	if err != nil {
		return err
	}
	return s.write(dir)
}

// renew gives a slice a new file system with new limits and usage files, so that nothing of its
// last container reaches the next one. Processes that have the old one mounted keep it.
func renew(dir string) error {
	limits, err := limiter.ReadLimits(filepath.Join(dir, patternName))
	if err == nil {
		err = vgpufs.Unmount(dir)
	}
	if err == nil {
		err = vgpufs.Mount(dir)
	}
	if err == nil {
		err = oci.WriteFiles(dir, limits)
	}
	if err == nil {
		err = os.RemoveAll(filepath.Join(dir, markName)) // last: until then they are renewed again
	}
	if err != nil {
		return fmt.Errorf("renew the slice's files: %w", err)
	}
	return nil
}

// marked says whether a slice's files are, or were, a container's.
func marked(dir string) bool { return exists(filepath.Join(dir, markName)) }

// Remove takes a slice away that is no more wanted. One that a container has stays, and
// that is said.
func Remove(ctx context.Context, stateDir, name string) (inUse bool, err error) {
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return false, err
	}
	defer unlock()
	holder, inUse, err := held(ctx, stateDir, name)
	if err != nil || inUse {
		return inUse, err
	}
	if err := clearHolder(ctx, stateDir, Dir(stateDir, name), holder); err != nil {
		return false, err
	}
	dir := Dir(stateDir, name)
	gone := filepath.Join(filepath.Dir(dir), oldPrefix+name)
	if err := os.Rename(dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove slice %s: %w", name, err)
	}
	return false, vgpufs.RemoveAll(gone)
}

// PeekRemove is Remove that changes nothing.
func PeekRemove(ctx context.Context, stateDir, name string) (inUse bool, err error) {
	_, inUse, err = held(ctx, stateDir, name)
	return inUse, err
}

// held says who has a slice, and whether that container is there still.
func held(ctx context.Context, stateDir, name string) (h *holder, inUse bool, err error) {
	h, err = holderOf(ctx, stateDir, name)
	return h, err == nil && h != nil && h.alive(orphans.NewJudge()), err
}
