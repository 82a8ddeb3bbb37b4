package orphans

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/limiter"
)

// Process identifies a process, also if its PID is reused.
type Process struct {
	PID int `json:"pid"`
	// Start is its start in clock ticks since boot: field 22 of proc_pid_stat(5). An exec keeps it.
	Start uint64 `json:"start"`
}

// Procfs is the path of /proc.
type Procfs string

func (p Procfs) Identify(pid int) (Process, error) {
	s, err := p.stat(pid)
	if err == nil && s.Zombie {
		err = unix.ESRCH
	}
	if err != nil {
		return Process{}, fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	return Process{pid, s.Start}, nil
}

// Lives returns whether the process runs. During an exec by another thread, the first thread is a zombie for a
// moment, so a zombie is read again when there are no other threads.
func (p Procfs) Lives(of Process) bool {
	s, err := p.stat(of.PID)
	if err == nil && s.Zombie && !p.threads(of.PID) {
		s, err = p.stat(of.PID)
		return err == nil && !s.Zombie && s.Start == of.Start
	}
	return err == nil && s.Start == of.Start
}

func (p Procfs) stat(pid int) (procfs.Status, error) {
	if pid <= 0 {
		return procfs.Status{}, unix.ESRCH
	}
	return procfs.FS(p).Stat(strconv.Itoa(pid))
}

func (p Procfs) threads(pid int) bool {
	tasks, err := os.ReadDir(filepath.Join(string(p), strconv.Itoa(pid), "task"))
	return err == nil && len(tasks) > 1
}

func (p Procfs) Namespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(string(p), "self/ns/pid"), &st); err != nil {
		return 0, fmt.Errorf("read the PID namespace: %w", err)
	}
	return st.Ino, nil
}

// Mounted returns whether a process has the claim's usage file mounted, or is unreadable and in its cgroup. If
// the file system is not mounted here, its device is unknown: then a mount at the same path counts.
func (p Procfs) Mounted(dir string) bool {
	seen, err := vgpufs.Mounted(dir)
	if err != nil {
		return !errors.Is(err, unix.ENOENT) // without a mount point it was never mounted
	}
	var st unix.Stat_t
	if err := unix.Stat(limiter.FilesDir(dir), &st); err != nil {
		return !errors.Is(err, unix.ENOENT)
	}
	want := mount{
		device: fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev))),
		// mountinfo shows the source of a mount as a path below its file system's root.
		source: "/" + filepath.Base(limiter.UsagePath(dir)),
	}
	if !seen {
		want = mount{point: filepath.Join("/", filepath.Base(filepath.Dir(dir)), filepath.Base(dir), filepath.Base(limiter.FilesDir(dir)))}
	}
	return p.has(want, filepath.Base(dir), !seen)
}

// has returns whether a process has a mount, or is unreadable and in the container's cgroup. byGroup: the
// cgroup is sufficient.
func (p Procfs) has(want mount, container string, byGroup bool) bool {
	inGroup := func(pid string) bool {
		groups, err := rawfile.Read(filepath.Join(string(p), pid, "cgroup"))
		return err == nil && strings.Contains(string(groups), container)
	}
	processes, err := os.ReadDir(string(p))
	if err != nil {
		return true
	}
	looked := map[string]bool{}
	for _, entry := range processes {
		if name := entry.Name(); name[0] < '0' || name[0] > '9' {
			continue
		}
		if byGroup && inGroup(entry.Name()) {
			return true
		}
		namespace, err := os.Readlink(filepath.Join(string(p), entry.Name(), "ns/mnt"))
		if err == nil && looked[namespace] {
			continue
		}
		var table []byte
		if err == nil {
			table, err = rawfile.Read(filepath.Join(string(p), entry.Name(), "mountinfo"))
		}
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
			continue // it has ended, or is a zombie
		case err != nil:
			if inGroup(entry.Name()) {
				return true
			}
			continue
		}
		looked[namespace] = true
		if want.in(string(table)) {
			return true
		}
	}
	return false
}

// mount is identified by device and source, or by the end of its mount point.
type mount struct{ device, source, point string }

func (m mount) in(table string) bool {
	for line := range strings.Lines(table) {
		// 36 35 98:0 /root /mount/point options…: see proc_pid_mountinfo(5)
		fields := strings.SplitN(line, " ", 6)
		if len(fields) == 6 && (m.point != "" && strings.HasSuffix(fields[4], m.point) || m.point == "" && fields[2] == m.device && fields[3] == m.source) {
			return true
		}
	}
	return false
}
