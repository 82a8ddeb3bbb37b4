package limiter

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// UsageInUse says whether a process lives that accounts in a usage file. It goes by
// the kernel's word alone, the locks that the processes hold: what the file says is a
// tenant's to write, and would keep a claim for ever.
func UsageInUse(path string) (bool, error) {
	fd, err := rawfile.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, fmt.Errorf("look for users of a usage file: %w", err)
	}
	defer unix.Close(fd)
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: usageLockSlow + 1, Len: usageSlots}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("look for users of %s: %w", path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}
