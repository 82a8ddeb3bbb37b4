package limiter

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// UsageInUse says whether a process lives that accounts in a usage file. It goes by
// the kernel's word alone, the locks that the processes hold: what the file says is a
// tenant's to write, and would keep a claim for ever.
func UsageInUse(path string) (bool, error) {
	var f file
	if err := f.open(path, unix.O_RDONLY); err != nil {
		return false, fmt.Errorf("look for users of a usage file: %w", err)
	}
	defer f.close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: usageLockSlow + 1, Len: usageSlots}
	if err := unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("look for users of %s: %w", path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}
