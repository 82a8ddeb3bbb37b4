package feedback

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/internal/mountinfo"
)

// Owners says which container a process is of. It remembers what it found out.
type Owners struct {
	proc   fs.FS // /proc
	mounts mountsOf
	known  map[int]owner
	// pruneAt is the size of known at which prune runs.
	pruneAt int
	// mountTime is how long one Find reads mount tables.
	mountTime time.Duration
}

// mountTime bounds what a tenant can cost with many processes and many mounts.
const mountTime = 500 * time.Millisecond

// fewKnown is the smallest pruneAt.
const fewKnown = 1024

type owner struct {
	started   string // a PID may come again
	container string
}

// NewOwners looks at processes in a directory such as /proc.
func NewOwners(proc string) *Owners {
	return &Owners{proc: os.DirFS(proc), mounts: mountsOf{proc}, known: map[int]owner{}, pruneAt: fewKnown, mountTime: mountTime}
}

// Find names the container of each process, of those whose ids and usage files are
// given; a process of none of them is not in the answer.
//
// A process is known by the usage file that is mounted in its root: no other container has
// that one. Where its root is another (it has changed it), or can't be seen, it is known by its
// control group, of which version soever, whose path has the container's id in it. That
// comes second: whoever is root enough to move to another container's group would be on
// that one's account.
//
// After mountTime the remaining processes are identified by their control group alone. These
// results are not cached.
func (o *Owners) Find(pids []int, usageFiles map[string]string) map[int]string {
	var mounted map[mountinfo.Source]string
	var until time.Time
	found := make(map[int]string, len(pids))
	for _, pid := range pids {
		started, alive := o.started(pid)
		if !alive {
			delete(o.known, pid)
			continue
		}
		is, seen := o.known[pid]
		_, there := usageFiles[is.container]
		if seen && is.started == started && there {
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
			o.known[pid] = owner{started, container}
		}
	}
	o.prune()
	return found
}

// prune drops the processes that have ended, when the number of known ones has doubled.
func (o *Owners) prune() {
	if len(o.known) < o.pruneAt {
		return
	}
	maps.DeleteFunc(o.known, func(pid int, is owner) bool {
		started, alive := o.started(pid)
		return !alive || started != is.started
	})
	o.pruneAt = max(fewKnown, 2*len(o.known))
}

// started is when the process began, in the kernel's words.
func (o *Owners) started(pid int) (string, bool) {
	text, err := fs.ReadFile(o.proc, strconv.Itoa(pid)+"/stat")
	if err != nil {
		return "", false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return "", false
	}
	return fields[19], true
}

func (o *Owners) look(pid int, containers map[string]string, mounted map[mountinfo.Source]string) string {
	name := strconv.Itoa(pid)
	if id := o.lookAt(name, containers, mounted); id != "" || !o.ended(name) {
		return id
	}
	// When the first thread has ended, read another one. Only one, because each can have many
	// mounts.
	threads, err := fs.ReadDir(o.proc, name+"/task")
	if err != nil {
		return ""
	}
	for _, t := range threads {
		if thread := name + "/task/" + t.Name(); !o.ended(thread) {
			return o.lookAt(thread, containers, mounted)
		}
	}
	return ""
}

func (o *Owners) lookAt(name string, containers map[string]string, mounted map[mountinfo.Source]string) string {
	if id := o.mounts.container(name, mounted); id != "" {
		return id
	}
	text, err := fs.ReadFile(o.proc, name+"/cgroup")
	if err != nil {
		return ""
	}
	return fromCgroup(string(text), containers)
}

// ended says whether a thread, for a process the first one, is a zombie.
func (o *Owners) ended(name string) bool {
	text, err := fs.ReadFile(o.proc, name+"/stat")
	rest := bytes.TrimLeft(text[bytes.LastIndexByte(text, ')')+1:], " ")
	return err == nil && len(rest) > 0 && rest[0] == 'Z'
}

// fromCgroup finds a container's id in /proc/<pid>/cgroup. The outermost that
// matches counts: what is below a container's own group it may have named itself.
//
//	0::/kubepods.slice/kubepods-pod1234.slice/cri-containerd-<id>.scope
//	4:devices:/kubepods/burstable/pod1234/<id>
func fromCgroup(text string, containers map[string]string) string {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		_, group, _ := strings.Cut(rest, ":")
		for part := range strings.SplitSeq(group, "/") {
			id := strings.TrimSuffix(part, ".scope")
			if _, ok := containers[id]; ok && id != "" {
				return id
			}
			// crio-<id>, cri-containerd-<id>, docker-<id>, and k8s.io:…:<id> as runc's own
			id = id[strings.LastIndexAny(id, "-:")+1:]
			if _, ok := containers[id]; ok && id != "" {
				return id
			}
		}
	}
	return ""
}
