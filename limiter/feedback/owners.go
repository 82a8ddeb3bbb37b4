package feedback

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
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

// mountsOf reads which container's usage file is mounted in a process' root. It compares the device and path of mounts,
// which a tenant can't forge, and does not look up paths, because a tenant's file system may never answer.
type mountsOf struct{ proc procfs.FS }

var usageName = filepath.Base(api.ContainerUsagePath)

func (m mountsOf) sources(files map[string]string) map[mountinfo.Source]string {
	var own []mountinfo.Mount
	if !m.scan("self", mountinfo.MostBytes, func(one mountinfo.Mount) bool { own = append(own, one); return true }) {
		return nil
	}
	found := make(map[mountinfo.Source]string, len(files))
	real := map[string]string{} // usually one
	for container, file := range files {
		dir := filepath.Dir(file)
		claims := filepath.Dir(filepath.Dir(dir))
		if _, known := real[claims]; !known {
			real[claims], _ = filepath.EvalSymlinks(claims)
		}
		base, _ := mountinfo.Locate(own, filepath.Join(real[claims], strings.TrimPrefix(dir, claims)))
		if real[claims] != "" && base.Device != "" {
			found[base.Below(filepath.Base(file))] = container
		}
	}
	return found
}

// If the image has links in the path, the file is mounted elsewhere in the container's root.
func (m mountsOf) container(name string, sources map[mountinfo.Source]string) string {
	if len(sources) == 0 || m.hosts(name) {
		return ""
	}
	roots, dirs := map[int]bool{}, map[int]mountinfo.Source{}
	exact, linked := "", ""
	complete := m.scan(name, mostMounts, func(one mountinfo.Mount) bool {
		if one.Point == "/" {
			roots[one.ID] = true
		}
		if roots[one.Parent] {
			dirs[one.ID] = one.Source
		}
		container := sources[one.Source]
		switch {
		case container == "":
		case one.Point == api.ContainerUsagePath:
			exact = container
		case dirs[one.Parent].Below(usageName) == one.Source:
			linked = container // below the claim's directory, which is mounted on the root
		}
		return exact == ""
	})
	if exact == "" && complete {
		return linked
	}
	return exact
}

// hosts reports whether a process is in PID 1's mount namespace, which has no container's mounts.
func (m mountsOf) hosts(name string) bool {
	of, err := os.Readlink(m.proc.Path(name, "ns/mnt"))
	if err != nil {
		return false
	}
	first, err := os.Readlink(m.proc.Path("1/ns/mnt"))
	return err == nil && of == first
}

// mostMounts is about 2,000 mounts. A tenant can have 100,000: then the control group counts.
const mostMounts = 256 << 10

// scan returns false on an error, and after most bytes.
func (m mountsOf) scan(name string, most int64, each func(mountinfo.Mount) bool) bool {
	f, err := os.Open(m.proc.Path(name, "mountinfo"))
	if err != nil {
		return false
	}
	defer f.Close()
	limited := &io.LimitedReader{R: f, N: most}
	return mountinfo.Scan(limited, each) == nil && limited.N > 0
}
