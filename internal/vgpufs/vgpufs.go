// Package vgpufs mounts a tmpfs for the limits and usage files of a container, on the directory "vgpu" of its
// claim. The container has it mounted as /.gpuslice, and can fill only this file system. Another tmpfs has the turn
// files of all containers of the node.
package vgpufs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Name is the name of the mount point in the directory of a claim or of a slice.
const Name = "vgpu"

const (
	// filesBytes is the size of both files; a test compares it with package limiter.
	filesBytes = 4096 + 1_314_816
	inodes     = 16 + mountPoints
	// mountPoints are those of the turns of 16 GPUs, and their directory.
	mountPoints = 1 + 16
	flags       = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
)

// options returns the mount options: two pages more than the files, for a new limits file and for rounding.
// The label can have commas.
func options(label string) string {
	page := os.Getpagesize()
	pages := (filesBytes+page-1)/page + 2
	return labelled(fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", pages*page, inodes), label)
}

func labelled(options, label string) string {
	if label != "" {
		options += fmt.Sprintf(`,context="%s"`, label)
	}
	return options
}

var seLinux = sync.OnceValue(func() bool {
	kinds, err := os.ReadFile("/proc/filesystems")
	return err != nil || bytes.Contains(kinds, []byte("\tselinuxfs\n"))
})

// labelOf returns the SELinux label of a directory, or "". Containers can't read a tmpfs without a label.
func labelOf(dir string, selinux bool) (string, error) {
	if !selinux {
		return "", nil
	}
	label := make([]byte, 4096)
	n, err := unix.Lgetxattr(dir, "security.selinux", label)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the SELinux label: %w", err)
	}
	return strings.TrimRight(string(label[:n]), "\x00"), nil
}

// Mount mounts a claim's file system in this mount namespace. It fails if the host can't see the mount.
func Mount(claimDir string) error {
	if err := mount(claimDir, Name, options); err != nil {
		return err
	}
	return seenIn(hostRoot, claimDir, Name)
}

func mount(dir, name string, options func(label string) string) error {
	return onPoint(dir, name, func(point string) error {
		label, err := labelOf(dir, seLinux())
		if err != nil {
			return err
		}
		return unix.Mount("gpuslice", point, "tmpfs", flags, options(label))
	})
}

// Bind mounts the file system of from for a claim.
func Bind(from, claimDir string) error {
	err := onPoint(claimDir, Name, func(point string) error {
		return unix.Mount(filepath.Join(from, Name), point, "", unix.MS_BIND, "")
	})
	if err != nil {
		return err
	}
	return seenIn(hostRoot, claimDir, Name)
}

const hostRoot = "/proc/1/root"

// seenIn fails if the directory is visible below root but the mount in it is not.
func seenIn(root, dir, name string) error {
	host := filepath.Join(root, dir)
	var here, there unix.Stat_t
	if unix.Lstat(dir, &here) != nil || unix.Lstat(host, &there) != nil || here.Dev != there.Dev || here.Ino != there.Ino {
		return nil
	}
	return requireMounted(host, dir, name, "the container runtime has its own mount namespace, and the host does not see its mounts: "+
		"remove MountFlags and PrivateMounts from the runtime's systemd unit, and restart it")
}

func requireMounted(seenAs, dir, name, reason string) error {
	seen, err := mounted(seenAs, name)
	if err == nil && !seen {
		err = errors.New(reason)
	}
	if err != nil {
		return fmt.Errorf("mount gpuslice's file system on %s: %w", filepath.Join(dir, name), err)
	}
	return nil
}

func onPoint(dir, name string, mount func(point string) error) error {
	point := filepath.Join(dir, name)
	err := unix.Mkdir(point, 0o755)
	if errors.Is(err, unix.EEXIST) {
		var done bool
		if done, err = mounted(dir, name); done {
			return nil
		}
	}
	if err == nil {
		err = mount(point)
	}
	if err != nil {
		return fmt.Errorf("mount gpuslice's file system on %s: %w", point, err)
	}
	return nil
}

// Mounted returns whether a claim's file system is visible.
func Mounted(claimDir string) (bool, error) { return mounted(claimDir, Name) }

func mounted(in, name string) (bool, error) {
	var dir, point unix.Stat_t
	if err := unix.Lstat(in, &dir); err != nil {
		return false, fmt.Errorf("stat %s: %w", in, err)
	}
	if err := unix.Lstat(filepath.Join(in, name), &point); err != nil {
		return false, fmt.Errorf("stat %s: %w", filepath.Join(in, name), err)
	}
	return dir.Dev != point.Dev, nil
}

// Unmount unmounts a claim's file system. Containers keep their mounts of it.
func Unmount(claimDir string) error { return unmount(filepath.Join(claimDir, Name)) }

func unmount(point string) error {
	err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("unmount %s: %w", point, err)
	}
	return nil
}

// RemoveAll unmounts the file system and removes the directory of a claim or of a slice. Containers keep their
// files. rmdir also removes mounts in other namespaces (since Linux 3.18).
func RemoveAll(claimDir string) error {
	unmounted := Unmount(claimDir)
	if err := os.RemoveAll(claimDir); err != nil {
		return errors.Join(unmounted, err)
	}
	return nil
}
