package cores

import (
	"bytes"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/internal/mountinfo"
)

// Owners says which container a process is of. It remembers what it found out.
type Owners struct {
	proc   fs.FS // /proc
	mounts mountsOf
	known  map[int]owner
}

type owner struct {
	started   string // a PID may come again
	container string
}

// NewOwners looks at processes in a folder such as /proc.
func NewOwners(proc string) *Owners {
	return &Owners{proc: os.DirFS(proc), mounts: mountsOf{proc}, known: map[int]owner{}}
}

// Find names the container of each process, of those whose ids and usage files are
// given; a process of none of them is not in the answer.
//
// A process is known by the usage file that is mounted in its root: no other container has
// that one. Where its root is another (it has changed it), or can't be seen, it is known by its
// control group, of which version soever, whose path has the container's id in it. That
// comes second: whoever is root enough to move to another container's group would be on
// that one's account.
func (o *Owners) Find(pids []int, usageFiles map[string]string) map[int]string {
	var mounted map[mountinfo.Source]string
	found := make(map[int]string, len(pids))
	known := make(map[int]owner, len(pids))
	for _, pid := range pids {
		started, alive := o.started(pid)
		if !alive {
			continue
		}
		is, seen := o.known[pid]
		_, there := usageFiles[is.container]
		if !seen || is.started != started || !there {
			if mounted == nil {
				mounted = o.mounts.sources(usageFiles)
			}
			is = owner{started, o.look(pid, usageFiles, mounted)}
		}
		if is.container != "" {
			known[pid] = is
			found[pid] = is.container
		}
	}
	o.known = known
	return found
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
	if id := o.lookAt(name, containers, mounted); id != "" || !o.firstEnded(name) {
		return id
	}
	// A process whose first thread has ended is seen by the others.
	threads, err := fs.ReadDir(o.proc, name+"/task")
	if err != nil {
		return ""
	}
	for _, t := range threads {
		if id := o.lookAt(name+"/task/"+t.Name(), containers, mounted); id != "" {
			return id
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

// firstEnded says whether a process' first thread is a zombie.
func (o *Owners) firstEnded(name string) bool {
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
