//go:build faults

package faults

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// connection is another process's connection to the unix socket at path, opened here
// too (pidfd_getfd).
func connection(pid int, path string) (*os.File, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // closed meanwhile
		}
		if peer, err := unix.Getpeername(fd); err == nil {
			if u, ok := peer.(*unix.SockaddrUnix); ok && u.Name == path {
				return os.NewFile(uintptr(fd), path), nil
			}
		}
		unix.Close(fd)
	}
	return nil, fmt.Errorf("process %d is not connected to %s", pid, path)
}

// requestArrived returns nil when something waits to be read by the process on its
// connection to path.
func requestArrived(pid int, path string) error {
	c, err := connection(pid, path)
	if err != nil {
		return err
	}
	defer c.Close()
	unread, err := unix.IoctlGetInt(int(c.Fd()), unix.SIOCINQ)
	if err == nil && unread == 0 {
		err = errors.New("nothing to read")
	}
	return err
}
