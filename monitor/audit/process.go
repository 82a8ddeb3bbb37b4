package audit

import (
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/procfs"
)

type group struct {
	// container is the runtime's ID; podUID can be empty for a pod's.
	container string
	pod       bool
	podUID    string
}

func (g group) none() bool { return g.container == "" && !g.pod }

var (
	containerPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)
	// With systemd's "_" for "-", or the hash of a static pod.
	podPattern = regexp.MustCompile(`pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)
)

// parseGroups parses /proc/<pid>/cgroup. The outermost container counts, because a container can create groups
// with any name below its own. known recognizes unusual IDs.
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
	// Seen from a control group namespace, as a pod's, paths begin with /../ and can lack "kubepods".
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

const generations = 64

// groupOf finds the container of a process without a claim. Without one in its own control group, an
// ancestor's counts: a process can leave its container's group, not its parent.
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

// privileges uses the bounding set, because a setuid program gives it to processes that are not root. Capabilities in
// another user namespace do not count.
func (i *Inspector) privileges(p *Process) {
	dir := strconv.Itoa(p.PID)
	bounding, known := i.proc.bounding(dir)
	if !known || bounding&(1<<unix.CAP_SYS_ADMIN) == 0 || !i.proc.ofMachine(dir) {
		return
	}
	_, exempt, _ := i.container(p.Container.ID)
	p.Admin = !exempt
	all, known := i.proc.bounding("1")
	p.Privileged = known && bounding&all == all
}

func (p procfiles) bounding(dir string) (set uint64, known bool) {
	f, err := os.Open(p.Path(dir, "status"))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20)) // up to 65,536 groups are listed
	if err != nil {
		return 0, false
	}
	_, after, found := strings.Cut(string(text), "\nCapBnd:")
	line, _, _ := strings.Cut(after, "\n")
	set, err = strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return set, found && err == nil
}

// machineUsers is the inode of the initial user namespace (PROC_USER_INIT_INO).
const machineUsers = 0xEFFFFFFD

func (p procfiles) ofMachine(dir string) bool {
	var st unix.Stat_t
	err := unix.Stat(p.Path(dir, "ns/user"), &st)
	return err == nil && st.Ino == machineUsers
}
