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
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

func lock(ctx context.Context, stateDir string) (unlock func(), err error) {
	dir := filepath.Join(stateDir, dirsName)
	err = os.MkdirAll(dir, 0o755)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	}
	if err == nil {
		err = rawfile.Lock(ctx, int(f.Fd()))
	}
	if err != nil {
		f.Close() // nil is valid
		return nil, fmt.Errorf("lock the slices: %w", err)
	}
	return func() { f.Close() }, nil
}

// Sweep removes what killed calls of Put and Remove left.
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

// Put makes or changes a slice. If a container uses it, Put returns it unchanged, with inUse. It releases an orphan.
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
		if err := releaseUser(ctx, stateDir, dir, c.user); err != nil {
			return s, false, err
		}
	}
	if c.same && (c.inUse || !marked(dir)) {
		return s, false, s.write(dir)
	}
	return s, false, build(stateDir, dir, s, settings)
}

// Peek is Put without changes.
func Peek(ctx context.Context, stateDir string, s Slice, settings oci.Settings) (now Slice, inUse bool, err error) {
	s.Version = recordVersion
	c, err := compare(ctx, stateDir, s, settings)
	if err == nil && c.inUse && !c.same {
		return c.old, true, nil
	}
	return s, false, err
}

type comparison struct {
	old   Slice
	same  bool
	user  *user
	inUse bool
}

func compare(ctx context.Context, stateDir string, s Slice, settings oci.Settings) (c comparison, err error) {
	dir := Dir(stateDir, s.Name)
	if c.old, err = Read(stateDir, s.Name); err != nil {
		return comparison{}, nil // Put builds a new one
	}
	complete := c.old.complete(stateDir)
	c.same = complete && c.old.equal(s) && samePattern(dir, s, settings)
	if c.same && !marked(dir) {
		return c, nil
	}
	c.user, c.inUse, err = used(ctx, stateDir, s.Name)
	if !complete && !c.inUse {
		c.user = nil // such files can't be renewed: Put builds new ones, and the claim is an orphan
	}
	return c, err
}

func releaseUser(ctx context.Context, stateDir, dir string, u *user) error {
	if u == nil {
		return nil
	}
	r, err := openLedger(stateDir)
	if err != nil {
		return err
	}
	defer r.Ledger.Close()
	return releaseOrphan(ctx, r, dir, u)
}

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

func build(stateDir, dir string, s Slice, settings oci.Settings) error {
	if old, err := Read(stateDir, s.Name); err == nil {
		if err := old.removeTurns(stateDir); err != nil {
			return fmt.Errorf("make slice %s: %w", s.Name, err)
		}
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), newPrefix)
	if err != nil {
		return fmt.Errorf("make slice %s: %w", s.Name, err)
	}
	defer vgpufs.RemoveAll(temp) // after the exchange: the old directory
	if err = fill(stateDir, temp, s, settings); err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
		if errors.Is(err, unix.ENOENT) {
			err = os.Rename(temp, dir)
		}
	}
	if err != nil {
		return fmt.Errorf("make slice %s: %w", s.Name, err)
	}
	return nil
}

func (s Slice) createTurns(stateDir string) error {
	if err := vgpufs.MountTurns(stateDir); err != nil {
		return err
	}
	return limiter.CreateTurns(stateDir, s.turnGPUs(), limiter.SliceTurnID(s.Name), true)
}

func (s Slice) removeTurns(stateDir string) error {
	return limiter.RemoveTurns(stateDir, s.turnGPUs(), limiter.SliceTurnID(s.Name))
}

func fill(stateDir, dir string, s Slice, settings oci.Settings) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := vgpufs.Mount(dir); err != nil {
		return err
	}
	if err := oci.Populate(dir, s.claim(""), settings); err != nil {
		return err
	}
	if err := s.createTurns(stateDir); err != nil {
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

// renew gives a slice a new file system and new turn files: nothing of its last container reaches the next.
func renew(dir string) error {
	stateDir := filepath.Dir(filepath.Dir(dir))
	s, err := Read(stateDir, filepath.Base(dir))
	limits, limitsErr := limiter.ReadLimits(filepath.Join(dir, patternName))
	err = errors.Join(err, limitsErr)
	for _, step := range []func() error{
		func() error { return vgpufs.Unmount(dir) },
		func() error { return vgpufs.Mount(dir) },
		func() error { return oci.WriteFiles(dir, limits) },
		func() error { return s.createTurns(stateDir) },
		func() error { return os.RemoveAll(filepath.Join(dir, markName)) }, // last: until then they are renewed again
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return fmt.Errorf("renew the slice's files: %w", err)
	}
	return nil
}

func marked(dir string) bool { return exists(filepath.Join(dir, markName)) }

// Remove removes a slice that no container uses.
func Remove(ctx context.Context, stateDir, name string) (inUse bool, err error) {
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return false, err
	}
	defer unlock()
	u, inUse, err := used(ctx, stateDir, name)
	if err != nil || inUse {
		return inUse, err
	}
	dir := Dir(stateDir, name)
	if err := releaseUser(ctx, stateDir, dir, u); err != nil {
		return false, err
	}
	if s, err := Read(stateDir, name); err == nil {
		if err := s.removeTurns(stateDir); err != nil {
			return false, err
		}
	}
	gone := filepath.Join(filepath.Dir(dir), oldPrefix+name)
	if err := os.Rename(dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove slice %s: %w", name, err)
	}
	return false, vgpufs.RemoveAll(gone)
}

// PeekRemove is Remove without changes.
func PeekRemove(ctx context.Context, stateDir, name string) (inUse bool, err error) {
	_, inUse, err = used(ctx, stateDir, name)
	return inUse, err
}

// used returns the slice's container, also if it is gone.
func used(ctx context.Context, stateDir, name string) (u *user, inUse bool, err error) {
	u, err = userOf(ctx, stateDir, name)
	return u, err == nil && u != nil && u.running(orphans.NewJudge()), err
}
