package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procfs is /proc, or a test's.
type procfs string

// status is what /proc/<pid>/stat says of a process or a thread.
type status struct {
	name   string // its own to set: it may have any character
	start  uint64
	parent int
	zombie bool
}

// stat reads a process' status; dir is its number, or PID/task/TID.
func (p procfs) stat(dir string) (status, error) {
	data, err := os.ReadFile(filepath.Join(string(p), dir, "stat"))
	if err != nil {
		return status{}, err
	}
	return parseStat(data)
}

// parseStat reads proc_pid_stat(5). The name, in parentheses, may have parentheses.
func parseStat(data []byte) (status, error) {
	open, closed := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || closed < open {
		return status{}, errors.New("a stat file without a name")
	}
	fields := strings.Fields(string(data[closed+1:]))
	if len(fields) < 20 {
		return status{}, fmt.Errorf("a stat file with %d fields after the name, not 20", len(fields))
	}
	s := status{name: string(data[open+1 : closed]), zombie: strings.ContainsAny(fields[0], "ZXx")}
	var err error
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, err
	}
	s.start, err = strconv.ParseUint(fields[19], 10, 64)
	return s, err
}

// process reads the status of a process that lives, and the directory that tells of it. That
// is another thread's where the first has ended: what the process has is no more to be
// seen in its own then.
func (p procfs) process(pid int) (s status, dir string, err error) {
	dir = strconv.Itoa(pid)
	if pid <= 0 {
		return s, dir, unix.ESRCH
	}
	if s, err = p.stat(dir); err != nil || !s.zombie {
		return s, dir, err
	}
	tasks, err := os.ReadDir(filepath.Join(string(p), dir, "task"))
	if err != nil {
		return s, dir, err
	}
	for _, task := range tasks {
		thread := filepath.Join(dir, "task", task.Name())
		if of, err := p.stat(thread); err == nil && !of.zombie {
			return s, thread, nil
		}
	}
	// Its first thread may have ended for an exec by another, which has its number now.
	if s, err = p.stat(dir); err == nil && s.zombie {
		err = unix.ESRCH
	}
	return s, dir, err
}

// all returns the PIDs of all processes, in order.
func (p procfs) all() ([]int, error) {
	dir, err := os.Open(string(p))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}
