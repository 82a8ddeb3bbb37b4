package cdihook

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// hostLdconfig is the host's own ldconfig.
type hostLdconfig struct{}

var _ ldconfigHost = hostLdconfig{}

// find prefers ldconfig.real, the program itself: Ubuntu's ldconfig is a script, and its
// shell isn't in the container.
func (hostLdconfig) find(path string) (string, error) {
	path = strings.TrimPrefix(path, "@") // as NVIDIA's configuration marks the host's
	for _, candidate := range []string{path + ".real", path} {
		info, err := os.Stat(candidate)
		if err == nil && info.Mode().IsRegular() {
			return candidate, nil
		}
		if err != nil && !os.IsNotExist(err) {
			return "", fmt.Errorf("look for ldconfig: %w", err)
		}
	}
	return "", fmt.Errorf("look for ldconfig: %s: %w", path, fs.ErrNotExist)
}

// run has ldconfig change its root first (-r: glibc's calls chroot), so that every path,
// and every link that the image has, is the container's. It gets no variables and no
// open files.
func (hostLdconfig) run(program, root string, args []string) error {
	cmd := exec.Command(program, append([]string{"-r", root}, args...)...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s in the container's root: %w: %s", program, err, bytes.TrimSpace(out[:min(len(out), 1024)]))
	}
	return nil
}

func (hostLdconfig) debian() bool {
	_, err := os.Stat(debianIssue)
	return err == nil
}
