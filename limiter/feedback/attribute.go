package feedback

import (
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/internal/mountinfo"
	"github.com/gpuslice/gpuslice/internal/procfs"
)

// Owners finds and caches the containers of processes.
type Owners struct {
	proc      procfs.FS
	mounts    mountsOf
	known     map[int]owner
	pruneAt   int
	mountTime time.Duration
}

// Tenants can have many processes and mounts.
const mountTime = 500 * time.Millisecond

// fewKnown is the smallest pruneAt.
const fewKnown = 1024

type owner struct {
	started   uint64 // PIDs are reused
	container string
}

// NewOwners reads processes from proc, such as /proc.
func NewOwners(proc string) *Owners {
	return &Owners{proc: procfs.FS(proc), mounts: mountsOf{procfs.FS(proc)}, known: map[int]owner{}, pruneAt: fewKnown, mountTime: mountTime}
}

// Find returns the container of each process that belongs to one of usageFiles, which are by container ID: by
// the usage file that is mounted in its root, or, if the root was changed or after mountTime, by its control
// group. That is less safe, because root can move to another group. Results after mountTime are not cached.
func (o *Owners) Find(pids []int, usageFiles map[string]string) map[int]string {
	var mounted map[mountinfo.Source]string
	var until time.Time
	found := make(map[int]string, len(pids))
	for _, pid := range pids {
		status, err := o.proc.Stat(strconv.Itoa(pid))
		if err != nil {
			delete(o.known, pid)
			continue
		}
		is, seen := o.known[pid]
		_, exists := usageFiles[is.container]
		if seen && is.started == status.Start && exists {
			found[pid] = is.container
			continue
		}
		delete(o.known, pid)
		if until.IsZero() {
			mounted, until = o.mounts.sources(usageFiles), time.Now().Add(o.mountTime)
		}
		late := !time.Now().Before(until)
		if late {
			mounted = nil
		}
		container := o.look(pid, usageFiles, mounted)
		if container == "" {
			continue
		}
		found[pid] = container
		if !late {
			o.known[pid] = owner{status.Start, container}
		}
	}
	o.prune()
	return found
}

func (o *Owners) prune() {
	if len(o.known) < o.pruneAt {
		return
	}
	maps.DeleteFunc(o.known, func(pid int, is owner) bool {
		s, err := o.proc.Stat(strconv.Itoa(pid))
		return err != nil || s.Start != is.started
	})
	o.pruneAt = max(fewKnown, 2*len(o.known))
}

func (o *Owners) look(pid int, containers map[string]string, mounted map[mountinfo.Source]string) string {
	name := strconv.Itoa(pid)
	if id := o.lookAt(name, containers, mounted); id != "" {
		return id
	}
	// Only one other thread: each can have many mounts.
	_, dir, err := o.proc.Process(pid)
	if err != nil || dir == name {
		return ""
	}
	return o.lookAt(dir, containers, mounted)
}

func (o *Owners) lookAt(dir string, containers map[string]string, mounted map[mountinfo.Source]string) string {
	if id := o.mounts.container(dir, mounted); id != "" {
		return id
	}
	text, err := os.ReadFile(o.proc.Path(dir, "cgroup"))
	if err != nil {
		return ""
	}
	return fromCgroup(string(text), containers)
}

// The outermost ID counts: a container can create groups with any name below its own.
func fromCgroup(text string, containers map[string]string) string {
	exists := func(id string) bool { _, ok := containers[id]; return ok }
	for path := range procfs.CgroupPaths(text) {
		for element := range strings.SplitSeq(path, "/") {
			if id := procfs.ContainerID(element, exists); id != "" {
				return id
			}
		}
	}
	return ""
}
