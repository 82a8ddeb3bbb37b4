package vgpufs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// TurnsName is the name of the turn files' mount point in the state directory.
const TurnsName = "turns"

// TurnsDir is the mount point of the node's turn files.
func TurnsDir(stateDir string) string { return filepath.Join(stateDir, TurnsName) }

// MountTurns mounts the file system for the turn files of all containers of the node, in this mount namespace. It fails
// if the host can't see the mount. It has no free space: each container can write to a file in it.
func MountTurns(stateDir string) error {
	if there, err := mounted(stateDir, TurnsName); there && err == nil {
		return nil
	}
	if err := mountTurns(stateDir); err != nil {
		return err
	}
	return seenIn(hostRoot, stateDir, TurnsName)
}

// mountTurns mounts only once: other processes do so too, with other locks.
func mountTurns(stateDir string) error {
	dir, err := rawfile.Open(stateDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir) // unlocks
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	if err := rawfile.Lock(ctx, dir); err != nil { // a container can't open this directory
		return fmt.Errorf("lock %s: %w", stateDir, err)
	}
	return mount(stateDir, TurnsName, turnsOptions)
}

// turnsOptions: 0 would be no limit.
func turnsOptions(label string) string { return labelled("mode=0755,"+size(1, 2), label) }

func size(pages, inodes uint64) string {
	return fmt.Sprintf("size=%d,nr_inodes=%d", pages*uint64(os.Getpagesize()), inodes)
}

// UnmountTurns unmounts the file system. Containers keep their mounts of it.
func UnmountTurns(stateDir string) error { return unmount(TurnsDir(stateDir)) }

const (
	// mostRoom is what containers can take in one call of WithRoom, in pages.
	mostRoom = 1024
	growths  = 20
	cuts     = 100
)

const lockWait = 5 * time.Second

// WithRoom calls change, which can be nil, while the turn files' file system has room for as many files of pages.
// Afterwards it has no free space. cut removes what containers have added to their files.
//
// A container that always writes can take the room first. Then there is twice as much, up to mostRoom, which takes longer
// than change. change must be idempotent.
func WithRoom(stateDir string, pages int, cut, change func() error) error {
	dir, err := rawfile.Open(TurnsDir(stateDir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	if err := rawfile.Lock(ctx, dir); err != nil { // a container can't open this directory
		return fmt.Errorf("lock %s: %w", TurnsDir(stateDir), err)
	}
	there, err := mounted(stateDir, TurnsName)
	if err != nil {
		return err
	}
	if !there { // a directory of the state directory's file system, in tests
		return errors.Join(cut(), call(change))
	}
	if change == nil {
		return fit(dir, stateDir, cut)
	}
	before, err := sizeOf(dir, stateDir)
	if err != nil {
		return err
	}
	room := uint64(max(pages, 1)) + 7
	for range growths {
		if err = resize(dir, stateDir, before.Blocks+room, before.Files+room); err == nil {
			err = change()
		}
		err = errors.Join(err, fit(dir, stateDir, cut))
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
		room = max(room, min(2*room, mostRoom))
	}
	return err
}

func call(change func() error) error {
	if change == nil {
		return nil
	}
	return change()
}

// fit leaves no free space. More can be in use by the time that it resizes.
func fit(dir int, stateDir string, cut func() error) (err error) {
	for range cuts {
		if err = cut(); err != nil {
			return err
		}
		var now unix.Statfs_t
		if now, err = sizeOf(dir, stateDir); err != nil {
			return err
		}
		if err = resize(dir, stateDir, now.Blocks-now.Bfree, now.Files-now.Ffree); !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return err
}

func sizeOf(dir int, stateDir string) (is unix.Statfs_t, err error) {
	if err := unix.Fstatfs(dir, &is); err != nil {
		return is, fmt.Errorf("read the size of %s: %w", TurnsDir(stateDir), err)
	}
	return is, nil
}

// resize is EINVAL if more is in use.
func resize(dir int, stateDir string, pages, inodes uint64) error {
	pages, inodes = max(pages, 1), max(inodes, 2)
	is, err := sizeOf(dir, stateDir)
	if err != nil || pages == is.Blocks && inodes == is.Files {
		return err
	}
	if err := unix.Mount("gpuslice", TurnsDir(stateDir), "tmpfs", flags|unix.MS_REMOUNT, size(pages, inodes)); err != nil {
		return fmt.Errorf("change the size of %s: %w", TurnsDir(stateDir), err)
	}
	return nil
}
