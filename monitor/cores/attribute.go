package cores

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpuslice/gpuslice/internal/procroot"
	"github.com/gpuslice/gpuslice/limiter"
)

// Owners says which container a process is of. It remembers what it found out.
type Owners struct {
	proc  fs.FS                                          // /proc
	usage func(process string) (file fileID, known bool) // the usage file in the root of a process, in /proc
	known map[int]owner
}

type owner struct {
	started   string // a PID may come again
	container string
}

// fileID is what a file is, whatever its path.
type fileID struct{ device, inode uint64 }

// NewOwners looks at processes in a folder such as /proc.
func NewOwners(proc string) *Owners {
	return &Owners{
		proc: os.DirFS(proc), known: map[int]owner{},
		usage: func(process string) (fileID, bool) {
			st, err := procroot.Stat(path.Join(proc, process, "root"), limiter.ContainerUsagePath)
			return fileID{st.Dev, st.Ino}, err == nil
		},
	}
}

func stat(name string) (fileID, bool) {
	info, err := os.Lstat(name)
	if err != nil {
		return fileID{}, false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(s.Dev), s.Ino}, true
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
	var mounted map[fileID]string
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
				mounted = inodes(usageFiles)
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

func inodes(files map[string]string) map[fileID]string {
	ids := make(map[fileID]string, len(files))
	for container, file := range files {
		if id, ok := stat(file); ok {
			ids[id] = container
		}
	}
	return ids
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

func (o *Owners) look(pid int, containers map[string]string, mounted map[fileID]string) string {
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

func (o *Owners) lookAt(name string, containers map[string]string, mounted map[fileID]string) string {
	if file, ok := o.usage(name); ok && mounted[file] != "" {
		return mounted[file]
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
