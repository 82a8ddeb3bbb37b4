package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// RemoveRemaining removes the cgroup that has the directory's name. It reports processes that still use the directory.
func RemoveRemaining(dir string) error {
	return Until(context.Background(), StopPatience, func(context.Context) error {
		return errors.Join(noProcessOf(dir), removeCgroups(filepath.Base(cgroupParent(dir))))
	})
}

// noProcessOf reports the processes of a directory that are left.
func noProcessOf(dir string) error {
	pids, err := processesOf(dir)
	errs := []error{err}
	for _, pid := range pids {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		errs = append(errs, fmt.Errorf("process %d is left: %s", pid, bytes.ReplaceAll(command, []byte{0}, []byte(" "))))
	}
	return errors.Join(errs...)
}

// processesOf are the processes that have the directory in their command line or environment, without this process and those
// that have ended.
func processesOf(dir string) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		command, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		environment, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if bytes.Contains(command, []byte(dir+"/")) || bytes.Contains(environment, []byte(dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// CgroupRoots are the directories of the hierarchies of version 1, or of version 2.
func CgroupRoots() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var roots []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[2], "cgroup") {
			roots = append(roots, fields[1])
		}
	}
	return roots, nil
}

// removeCgroups removes empty cgroups, the deepest first.
func removeCgroups(name string) error {
	roots, err := CgroupRoots()
	errs := []error{err}
	for _, root := range roots {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // it may be going
		})
		errs = append(errs, err)
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
