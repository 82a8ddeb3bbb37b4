package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/oci"
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
	p.Admin = !exempt && !i.settingUp(p)
	all, known := i.proc.bounding("1")
	p.Privileged = known && bounding&all == all
}

// settingUpFor is how long the container runtime's own process may prepare a container or an exec: its hooks run meanwhile.
const settingUpFor = time.Minute

// settingUp reports whether a process is the container runtime's in a container, before the container's program. It has all
// capabilities. A tenant can take the name, and not a later start.
func (i *Inspector) settingUp(p *Process) bool {
	if !strings.HasPrefix(p.Name, "runc:[") && p.Name != "crun" {
		return false
	}
	const tick = time.Second / 100 // USER_HZ
	return i.uptime() < time.Duration(p.Start)*tick+settingUpFor
}

// uptime is the time since boot, as the kernel counts it for the start of a process; 0 if it is not known.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
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

// file is as in /proc/<pid>/maps, which on some file systems has another device than stat.
type file struct{ device, inode string }

type mapped struct {
	driver bool
	// others: a driver library for OpenCL or Vulkan is mapped.
	cuda, others bool

	limiter Limiter
	files   Files
}

// expected are the right mappings of a container: library classifies limiters.
type expected struct {
	library       func(file) Limiter
	limits, usage file
	// unknown: the files that the container was created with are not known.
	unknown bool
}

// mostMaps is ten times the size of 65,530 mappings, the kernel's default limit.
const mostMaps = 64 << 20

var (
	errMaps     = fmt.Errorf("its list of mappings is longer than %d MiB", mostMaps>>20)
	errSlowMaps = fmt.Errorf("reading its list of mappings takes longer than %s", mapsTime)
)

type timed struct {
	io.Reader
	until time.Time
}

func (t timed) Read(b []byte) (int, error) {
	if time.Now().After(t.until) {
		return 0, errSlowMaps
	}
	return t.Reader.Read(b)
}

func scanMaps(r io.Reader, want expected) (mapped, error) {
	s := scan{mapped: mapped{limiter: LimiterAbsent}, want: want}
	limited := &io.LimitedReader{R: r, N: mostMaps}
	lines := bufio.NewReaderSize(limited, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			s.line(line)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // no line of the kernel is so long
		case errors.Is(err, io.EOF) && limited.N == 0:
			return s.result(), errMaps
		case errors.Is(err, io.EOF):
			return s.result(), nil
		case err != nil:
			return s.result(), err
		}
	}
}

type scan struct {
	mapped
	want                   expected
	limits, usage, foreign bool
}

func (s *scan) result() mapped {
	switch {
	case s.want.unknown:
		s.files = FilesUnknown
	case s.foreign:
		s.files = FilesForeign
	case s.limits && s.usage:
		s.files = FilesOwn
	default:
		s.files = FilesAbsent
	}
	return s.mapped
}

var (
	driverName = []byte("libcuda.so")
	// The driver's libraries for OpenCL and Vulkan.
	otherDrivers = [][]byte{[]byte("opencl.so"), []byte("glcore.so"), []byte("eglcore.so")}
	otherPrefix  = []byte("libnvidia-")
	// The driver's own library behind the limiter's front.
	driverBehind = []byte("/.gpuslice/driver/cuda")
	gpuPrefix    = []byte("/dev/nvidia")
	limiterName  = []byte("/libvgpu.so")
	limiterPath  = []byte(api.ContainerLibraryPath)
	limitsPath   = []byte(api.ContainerLimitsPath)
	usagePath    = []byte(api.ContainerUsagePath)
	deleted      = []byte(" (deleted)")
)

// line parses one line: address perms offset dev inode path.
func (s *scan) line(line []byte) {
	start := bytes.IndexByte(line, '/')
	if start < 0 {
		return // no file
	}
	path := bytes.TrimSuffix(bytes.TrimSuffix(line[start:], []byte("\n")), deleted)
	base := path[bytes.LastIndexByte(path, '/')+1:]
	switch {
	case bytes.HasPrefix(base, driverName), bytes.Equal(path, driverBehind):
		s.driver, s.cuda = true, true
	case isGPU(path):
		s.driver = true
	case bytes.HasPrefix(base, otherPrefix):
		s.others = s.others || slices.ContainsFunc(otherDrivers, func(name []byte) bool { return bytes.HasPrefix(base[len(otherPrefix):], name) })
	case s.limiter != LimiterPresent && bytes.HasSuffix(path, limiterName):
		s.library(line[:start], path)
	case string(base) == "limits":
		s.file(line[:start], path, s.want.limits, limitsPath, &s.limits)
	case string(base) == "usage":
		s.file(line[:start], path, s.want.usage, usagePath, &s.usage)
	}
}

func (s *scan) library(head, path []byte) {
	f := strings.Fields(string(head))
	if len(f) != 5 || !strings.Contains(f[1], "x") {
		return // data, not code
	}
	judged := s.want.library(file{f[3], f[4]})
	if judged == LimiterPresent || bytes.Equal(path, limiterPath) && s.limiter != LimiterForged {
		s.limiter = judged
	}
}

// The limiter maps its files shared.
func (s *scan) file(head, path []byte, want file, at []byte, own *bool) {
	f := strings.Fields(string(head))
	if len(f) != 5 {
		return
	}
	switch {
	case want == file{f[3], f[4]}:
		*own = *own || strings.HasSuffix(f[1], "s")
	case bytes.HasSuffix(path, at):
		s.foreign = true
	}
}

func isGPU(path []byte) bool {
	rest, ok := bytes.CutPrefix(path, gpuPrefix)
	return ok && len(rest) > 0 && '0' <= rest[0] && rest[0] <= '9'
}

// libraries are the installed limiters as in /proc/<pid>/maps.
type libraries struct {
	dir   string
	known map[string]learned
	files map[file]bool
	// renamed: the maps have other device or inode numbers for this directory than stat.
	renamed bool
}

type learned struct {
	inode uint64
	file  file
}

var libraryName = regexp.MustCompile(`^libvgpu-[0-9a-f]{16}\.so$`)

// learn drops removed libraries, because inodes are reused.
func (l *libraries) learn() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	known, files := make(map[string]learned, len(entries)), make(map[file]bool, len(entries))
	var errs []error
	for _, e := range entries {
		if !libraryName.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(l.dir, e.Name())
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			continue
		}
		is := l.known[e.Name()]
		if is.inode != st.Ino {
			f, err := inMaps(path)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
				continue
			}
			is = learned{st.Ino, f}
			l.renamed = l.renamed || f != asMapped(st.Dev, st.Ino)
		}
		known[e.Name()], files[is.file] = is, true
	}
	l.known, l.files = known, files
	return errors.Join(errs...)
}

// judge classifies a library of a container that was created with those in with; made is an error if these are
// unknown. An operator may reinstall a library while containers use it.
func (l *libraries) judge(f file, with []oci.Library, made error) Limiter {
	if l.files[f] {
		return LimiterPresent
	}
	if errors.Is(made, oci.ErrUnknownLibraries) {
		return LimiterUnknown
	}
	verdict := LimiterForeign
	for _, w := range with {
		switch {
		case !libraryName.MatchString(w.Name):
		case w.Inode == 0, l.renamed:
			return LimiterForeign
		case f == asMapped(w.Device, w.Inode):
			return LimiterPresent
		default:
			verdict = LimiterForged
		}
	}
	return verdict
}

func asMapped(device, inode uint64) file {
	return file{fmt.Sprintf("%02x:%02x", unix.Major(device), unix.Minor(device)), strconv.FormatUint(inode, 10)}
}

func inMaps(path string) (file, error) {
	f, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return file{}, err
	}
	defer func() { _ = unix.Munmap(data) }()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return file{}, err
	}
	at := fmt.Sprintf("%x-", uintptr(unsafe.Pointer(&data[0])))
	for line := range strings.Lines(string(maps)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(strings.TrimLeft(line, "0"), at) {
			return file{fields[3], fields[4]}, nil
		}
	}
	return file{}, errors.New("file not found in /proc/self/maps")
}
