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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/oci"
	"golang.org/x/sys/unix"
)

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
