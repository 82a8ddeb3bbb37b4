package cdihook

import (
	"fmt"
	"io/fs"
	"os"
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

// run has ldconfig change its root (-r) inside a jail, so that every path, and every link
// that the image has, is the container's.
func (hostLdconfig) run(program string, root *os.File, args []string) error {
	said, err := runInJail(program, root, append([]string{"-r", jailRoot}, args...))
	if err != nil {
		return fmt.Errorf("%s in the container's root: %w: %s", program, err, said)
	}
	return nil
}

func (hostLdconfig) debian() bool {
	_, err := os.Stat(debianIssue)
	return err == nil
}
