package limiter

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// Lock is a lock or a lease of a container's process on a file of its claim. The limiter locks only the bytes
// LimiterLocks to LimiterLocksEnd of the usage file, and host programs lock none.
type Lock struct{ Usage, Lease bool }

const (
	LimiterLocks    = usageLockSlow
	LimiterLocksEnd = usageLockLast
)

func (l Lock) String() string {
	kind, file := "lock", "limits file ("+api.ContainerLimitsPath+")"
	if l.Lease {
		kind = "lease"
	}
	if l.Usage {
		file = "usage file (" + api.ContainerUsagePath + ")"
	}
	return "a " + kind + " on its " + file
}

// Locks finds locks and leases on the files of a claim. It never waits, and does not read the list of all locks, which a
// tenant can make very long.
func (h *Holder) Locks(id, claimDir string) (found []Lock, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, usage := range []bool{false, true} {
		name, path := heldName{id: id, usage: usage}, LimitsPath(claimDir)
		if usage {
			path = UsagePath(claimDir)
		}
		holdErr := h.hold(name, path)
		f := h.held[name]
		switch {
		case errors.Is(holdErr, ErrLeased):
			found = append(found, Lock{usage, true})
		case holdErr != nil:
			err = errors.Join(err, holdErr)
		case f.open:
			locked, lockErr := f.locked(usage)
			if locked {
				found = append(found, Lock{Usage: usage})
			}
			if lockErr != nil {
				err = errors.Join(err, fmt.Errorf("find locks on %s: %w", path, lockErr))
			}
		}
	}
	return found, err
}

// Flock has no query: it is locked and unlocked.
func (f *file) locked(usage bool) (bool, error) {
	switch err := unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return false, err
	}
	if err := unix.Flock(f.fd, unix.LOCK_UN); err != nil {
		return false, err
	}
	if !usage {
		return f.lockedBytes(0, 0)
	}
	locked, err := f.lockedBytes(0, LimiterLocks)
	if locked || err != nil {
		return locked, err
	}
	return f.lockedBytes(LimiterLocksEnd+1, 0)
}

// lockedBytes checks length bytes; 0: to the end.
func (f *file) lockedBytes(start, length int64) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: start, Len: length}
	err := unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &lock)
	return err == nil && lock.Type != unix.F_UNLCK, err
}

// UsageInUse reports whether a running process uses a usage file. It reads the kernel's locks, because a tenant can
// write the file.
func UsageInUse(path string) (bool, error) {
	var f file
	if err := f.open(path, unix.O_RDONLY); err != nil {
		return false, fmt.Errorf("find users of a usage file: %w", err)
	}
	defer f.close()
	used, err := f.lockedBytes(usageLockSlow+1, usageSlots)
	if err != nil {
		return false, fmt.Errorf("find users of %s: %w", path, err)
	}
	return used, nil
}
