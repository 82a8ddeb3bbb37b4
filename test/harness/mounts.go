package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// MountsBelow lists the mount points at dir and below it, deepest first.
func MountsBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// The fifth field is the mount point; see proc_pid_mountinfo(5).
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			points = append(points, fields[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points)))
	return points, nil
}

// LoseClaims simulates the loss of a ledger's file system: it removes the claims, and containers
// keep their mounts.
func LoseClaims(stateDir string) error {
	claims := filepath.Join(stateDir, "containers")
	if err := unmountBelow(claims); err != nil {
		return err
	}
	return os.RemoveAll(claims)
}

func unmountBelow(dir string) error {
	points, err := MountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// MountTmpfs mounts a tmpfs of at most sizeMiB at dir.
func MountTmpfs(dir string, sizeMiB int) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%dm,mode=0711", sizeMiB)); err != nil {
		return fmt.Errorf("mount a tmpfs at %s (as root): %w", dir, err)
	}
	// Shared, as with systemd: mounts in it propagate to containers that have it mounted.
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make the mount %s shared: %w", dir, err)
	}
	return nil
}
