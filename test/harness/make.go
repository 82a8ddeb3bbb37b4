package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// Make runs make for a target in directories of C code; "" is the default target. The output is in build/, with a sanitizer in
// a directory of its own below it. Test programs that run at the same time take turns.
func Make(sanitizer, target string, dirs ...string) error {
	root, err := Repository()
	if err != nil {
		return err
	}
	build := filepath.Join(root, "build")
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(build, ".lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	for _, dir := range dirs {
		args := []string{"-s", "-j", strconv.Itoa(runtime.NumCPU()), "-C", filepath.Join(root, dir), "OUT=" + build, "SAN=" + sanitizer}
		if target != "" {
			args = append(args, target)
		}
		if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("make -C %s: %w\n%s", dir, err, out)
		}
	}
	return nil
}
