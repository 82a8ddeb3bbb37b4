//go:build root

package process

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// isolated marks the process in its own root directory.
const isolated = "GPUSLICE_TEST_ISOLATED"

// ownRoot starts a program with a root directory and an /etc of its own, and all other directories of the machine: `gpuslice run`
// leaves mount points there, with which other tests don't run.
const ownRoot = `set -e
dir=$(mktemp -d)
trap 'umount -l "$dir" && rmdir "$dir"' EXIT
mount -t tmpfs -o mode=711 root "$dir"
cd "$dir"
mkdir upper work root upper-etc work-etc
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work root root
mount -t overlay -o lowerdir=/etc,upperdir=upper-etc,workdir=work-etc etc root/etc
for path in /*; do
  if [ -d "$path" ] && ! [ -L "$path" ] && [ "$path" != /etc ]; then mount --rbind "$path" "root$path"; fi
done
chroot root env -C "$OLDPWD" "$@"`

func TestMain(m *testing.M) {
	if os.Getenv(isolated) != "" {
		os.Exit(m.Run())
	}
	c := exec.Command("/bin/sh", append([]string{"-c", ownRoot, "sh"}, os.Args...)...)
	c.Env = append(os.Environ(), isolated+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := c.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
