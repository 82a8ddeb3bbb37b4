package audit

import (
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/internal/procfs"
)

// group is what a process' control group says of its container.
type group struct {
	// container is the runtime's id of it; pod says that it is a pod's, podUID whose if
	// the path tells.
	container string
	pod       bool
	podUID    string
}

func (g group) none() bool { return g.container == "" && !g.pod }

var (
	containerPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)
	// A pod's: with systemd's "_" for "-", or the hash of a static pod.
	podPattern = regexp.MustCompile(`pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)
)

// parseGroups reads /proc/<pid>/cgroup, of version 1 or 2. The outermost group that names
// a container counts: what is below its own a container may have named itself. known
// says of an id that doesn't look like one whether it is one.
//
//	0::/kubepods.slice/kubepods-pod0f8f….slice/cri-containerd-<id>.scope
//	4:devices:/docker/<id>
func parseGroups(text string, known func(id string) bool) group {
	var best group
	for path := range procfs.CgroupPaths(text) {
		g := parseGroup(path, known)
		if g.container != "" {
			return g
		}
		if best.none() {
			best = g
		}
	}
	return best
}

func parseGroup(path string, known func(id string) bool) (g group) {
	// In a control group namespace of one's own, as a pod's is, others' paths lead up from it:
	// "kubepods" itself may not be in them.
	up := strings.HasPrefix(path, "/../")
	for part := range strings.SplitSeq(path, "/") {
		g.pod = g.pod || strings.HasPrefix(part, "kubepods") || up && strings.HasPrefix(part, "pod") && podPattern.MatchString(part)
		if uid := podPattern.FindStringSubmatch(part); g.pod && uid != nil {
			g.podUID = strings.ReplaceAll(uid[1], "_", "-")
		}
		if g.container = procfs.ContainerID(part, func(id string) bool { return containerPattern.MatchString(id) || known(id) }); g.container != "" {
			return g
		}
	}
	return g
}

// generations is how far a process' ancestors are looked at.
const generations = 64

// groupOf finds the container of a process that no claim's is, by its control group or,
// without one, by those of its ancestors: a process that left its container's group still has
// its parent. That holds in the host's PID namespace too, until the parent ends.
func (i *Inspector) groupOf(s procfs.Status, dir string, known func(string) bool) group {
	for range generations {
		if text, err := os.ReadFile(i.proc.Path(dir, "cgroup")); err == nil {
			if g := parseGroups(string(text), known); !g.none() {
				return g
			}
		}
		if s.Parent <= 0 {
			return group{}
		}
		dir = strconv.Itoa(s.Parent)
		var err error
		if s, err = i.proc.Stat(dir); err != nil {
			return group{}
		}
	}
	return group{}
}
