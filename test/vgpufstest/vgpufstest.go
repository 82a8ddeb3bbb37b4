// Package vgpufstest is for tests of mounts.
package vgpufstest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// NewRoot are shell commands for a process with its own mount namespace. They make /mnt a root
// directory like the present one, with an empty directory for the limiter's files.
const NewRoot = `mount -t tmpfs none /mnt
for name in /*; do
	if [ -L "$name" ]; then
		cp -P "$name" /mnt
	elif [ -d "$name" ] && [ "$name" != /mnt ]; then
		mkdir "/mnt$name"
		mount --rbind "$name" "/mnt$name"
	fi
done
mkdir /mnt` + api.ContainerDir + "\n"

// Unmount removes the claims and slices of a state directory when the test ends, so that the
// directory can be removed.
func Unmount(tb testing.TB, stateDir string) {
	tb.Cleanup(func() { Lose(tb, stateDir) })
}

// Lose simulates the loss of a state directory's file system: it removes the claims, slices and turn files, and
// containers keep their mounts.
func Lose(tb testing.TB, stateDir string) {
	for _, kind := range []string{"containers", "slices"} {
		dirs, err := filepath.Glob(filepath.Join(stateDir, kind, "*"))
		if err != nil {
			tb.Error(err)
		}
		for _, dir := range dirs {
			if err := vgpufs.RemoveAll(dir); err != nil {
				tb.Error(err)
			}
		}
	}
	if err := errors.Join(vgpufs.UnmountTurns(stateDir), os.RemoveAll(vgpufs.TurnsDir(stateDir))); err != nil {
		tb.Error(err)
	}
}
