// Package procfs reads processes from /proc: their status, their threads and the container
// IDs in their control groups.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// FS is the path of a proc file system.
type FS string

func (p FS) Path(elements ...string) string {
	return filepath.Join(string(p), filepath.Join(elements...))
}

// Status is from the stat file of a process or a thread.
type Status struct {
	Name   string // the process can set it to any bytes
	Start  uint64
	Parent int
	Zombie bool
}

// Stat reads the status of PID or PID/task/TID.
func (p FS) Stat(dir string) (Status, error) {
	data, err := rawfile.Read(p.Path(dir, "stat"))
	if err != nil {
		return Status{}, err
	}
	return ParseStat(data)
}

// ParseStat parses proc_pid_stat(5). The name, in parentheses, can contain parentheses.
func ParseStat(data []byte) (Status, error) {
	open, closed := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || closed < open {
		return Status{}, errors.New("stat file has no name")
	}
	fields := strings.Fields(string(data[closed+1:]))
	if len(fields) < 20 {
		return Status{}, fmt.Errorf("stat file has %d fields after the name, not 20", len(fields))
	}
	s := Status{Name: string(data[open+1 : closed]), Zombie: strings.ContainsAny(fields[0], "ZXx")}
	var err error
	if s.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, err
	}
	s.Start, err = strconv.ParseUint(fields[19], 10, 64)
	return s, err
}

// Process returns the status of a running process and its directory. If the first thread has
// ended, its directory shows no resources, so these are of another thread.
func (p FS) Process(pid int) (s Status, dir string, err error) {
	dir = strconv.Itoa(pid)
	if pid <= 0 {
		return s, dir, unix.ESRCH
	}
	if s, err = p.Stat(dir); err != nil || !s.Zombie {
		return s, dir, err
	}
	tasks, err := os.ReadDir(p.Path(dir, "task"))
	if err != nil {
		return s, dir, err
	}
	for _, task := range tasks {
		thread := filepath.Join(dir, "task", task.Name())
		if of, err := p.Stat(thread); err == nil && !of.Zombie {
			return s, thread, nil
		}
	}
	// After an exec by another thread, that thread has the first one's number.
	if s, err = p.Stat(dir); err == nil && s.Zombie {
		err = unix.ESRCH
	}
	return s, dir, err
}

// All returns the PIDs of all processes, sorted.
func (p FS) All() ([]int, error) {
	entries, err := os.ReadDir(string(p))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// LockedBy finds a file in what /proc/locks has, and returns the process with a lock of flock on it: 0 if that is in another PID
// namespace. The kernel gives out /proc/locks by the page, and leaves a lock out if one before it is released meanwhile.
func LockedBy(locks string, dev, ino uint64) (pid int, held bool) {
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), ino)
	// "1: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF", proc_locks(5)
	for line := range strings.Lines(locks) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == file {
			pid, _ = strconv.Atoi(fields[4])
			return pid, true
		}
	}
	return 0, false
}

// CgroupPaths yields the paths in a /proc/<pid>/cgroup of version 1 or 2.
func CgroupPaths(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			_, path, _ := strings.Cut(rest, ":")
			if !yield(path) {
				return
			}
		}
	}
}

// ContainerID returns the container ID in one element of a control group's path, such as
// <id>, crio-<id>.scope or k8s.io:cri:<id>; is recognizes IDs. Empty: none.
func ContainerID(element string, is func(id string) bool) string {
	id := strings.TrimSuffix(element, ".scope")
	for _, id := range []string{id, id[strings.LastIndexAny(id, "-:")+1:]} {
		if id != "" && is(id) {
			return id
		}
	}
	return ""
}
