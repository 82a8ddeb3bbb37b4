package limiter

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// UsageInUse reports whether a running process uses a usage file. It reads the kernel's locks, because a tenant can
// write the file.
func UsageInUse(path string) (bool, error) {
	var f file
	if err := f.open(path, unix.O_RDONLY); err != nil {
		return false, fmt.Errorf("find users of a usage file: %w", err)
	}
	defer f.close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: usageLockSlow + 1, Len: usageSlots}
	if err := unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("find users of %s: %w", path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}
