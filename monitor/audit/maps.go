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
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// file is a mapped file, in the kernel's words: /proc/<pid>/maps tells of some file
// systems another device than stat does.
type file struct{ device, inode string }

// mapped is what is found in a process' maps.
type mapped struct {
	driver  bool
	limiter Limiter
}

// mostMaps is how much of a process' maps is read: ten times what the kernel's default of
// 65,530 mappings comes to.
const mostMaps = 64 << 20

// errMaps says that a process has more than that.
var errMaps = fmt.Errorf("its list of mappings is longer than %d MiB", mostMaps>>20)

// scanMaps looks for the driver and for a limiter that is installed.
func scanMaps(r io.Reader, installed func(file) bool) (m mapped, err error) {
	m.limiter = LimiterAbsent
	limited := &io.LimitedReader{R: r, N: mostMaps}
	lines := bufio.NewReaderSize(limited, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			m.line(line, installed)
		}
		switch {
		case m.driver && m.limiter == LimiterPresent:
			return m, nil
		case errors.Is(err, bufio.ErrBufferFull): // no line of the kernel's is so long
		case errors.Is(err, io.EOF) && limited.N == 0:
			return m, errMaps
		case errors.Is(err, io.EOF):
			return m, nil
		case err != nil:
			return m, err
		}
	}
}

var (
	driverName = []byte("libcuda.so")
	// Where the driver's own library is behind the limiter's front.
	driverBehind = []byte("/usr/local/vgpu/driver/cuda")
	cardPrefix   = []byte("/dev/nvidia")
	limiterName  = []byte("/libvgpu.so")
	limiterPath  = []byte(limiter.ContainerLibraryPath)
	deleted      = []byte(" (deleted)")
)

// line reads one: address perms offset dev inode path.
func (m *mapped) line(line []byte, installed func(file) bool) {
	start := bytes.IndexByte(line, '/')
	if start < 0 {
		return // of no file
	}
	path := bytes.TrimSuffix(bytes.TrimSuffix(line[start:], []byte("\n")), deleted)
	base := path[bytes.LastIndexByte(path, '/')+1:]
	switch {
	case bytes.HasPrefix(base, driverName), bytes.Equal(path, driverBehind), isCard(path):
		m.driver = true
	case m.limiter != LimiterPresent && bytes.HasSuffix(path, limiterName):
		f := strings.Fields(string(line[:start]))
		if len(f) != 5 || !strings.Contains(f[1], "x") {
			return // data, not code
		}
		switch {
		case installed(file{f[3], f[4]}):
			m.limiter = LimiterPresent
		case bytes.Equal(path, limiterPath):
			m.limiter = LimiterForeign
		}
	}
}

// isCard says whether a path is a card's device node: /dev/nvidia0.
func isCard(path []byte) bool {
	rest, ok := bytes.CutPrefix(path, cardPrefix)
	return ok && len(rest) > 0 && '0' <= rest[0] && rest[0] <= '9'
}

// libraries knows the limiter's files that are installed on the node, as maps name them.
type libraries struct {
	dir   string
	known map[string]uint64 // by name, the inode that was learned
	files map[file]bool
}

var libraryName = regexp.MustCompile(`^libvgpu-[0-9a-f]{16}\.so$`)

// learn looks for those that are new. One that is removed is kept: containers have it.
func (l *libraries) learn() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !libraryName.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(l.dir, e.Name())
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || l.known[e.Name()] == st.Ino {
			continue
		}
		f, err := inMaps(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		l.known[e.Name()] = st.Ino
		l.files[f] = true
	}
	return errors.Join(errs...)
}

// inMaps finds out how maps name a file: by mapping it here.
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
	return file{}, errors.New("it is not in our own maps")
}
