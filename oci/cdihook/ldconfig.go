package cdihook

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
)

type hostLdconfig struct{}

var _ ldconfigHost = hostLdconfig{}

// find prefers ldconfig.real, because Ubuntu's ldconfig is a script.
func (hostLdconfig) find(path string) (string, error) {
	path = strings.TrimPrefix(path, "@") // NVIDIA's mark of a path of the host
	for _, candidate := range []string{path + ".real", path} {
		info, err := os.Stat(candidate)
		if err == nil && info.Mode().IsRegular() {
			return candidate, nil
		}
		if err != nil && !os.IsNotExist(err) {
			return "", fmt.Errorf("find ldconfig: %w", err)
		}
	}
	return "", fmt.Errorf("find ldconfig: %s: %w", path, fs.ErrNotExist)
}

// run runs ldconfig -r in a jail, so that every path and link stays in the container.
func (hostLdconfig) run(program string, root *os.File, args []string) error {
	output, err := runInJail(program, root, append([]string{"-r", jailRoot}, args...))
	if err != nil {
		return fmt.Errorf("%s in the container's root: %w: %s", program, err, output)
	}
	return nil
}

func (hostLdconfig) debian() bool {
	_, err := os.Stat(debianIssue)
	return err == nil
}
