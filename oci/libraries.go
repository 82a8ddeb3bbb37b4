package oci

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// librariesFile, in a claim's directory, lists the libraries of its container, one a line: "libvgpu-0123456789abcdef.so 254:1
// 4711", with device and inode if known.
const librariesFile = "libraries"

// unknownLibraries is for a claim that was restored while its container ran.
const unknownLibraries = "unknown\n"

// Library is an installed file that a container was created with.
type Library struct {
	Name string
	// Device and Inode: 0 if unknown.
	Device, Inode uint64
}

var ErrUnknownLibraries = errors.New("the claim was restored while its container ran: the files that the container has mounted are not known")

// installed is compiled at its first use: gpuslice-runtime starts with each container and never uses it.
var installed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`libvgpu(-cuda|-nvml)?-[0-9a-f]{16}\.so|` + mountCheckName + `[0-9a-f]{16}`)
})

func isInstalled(name string) bool { return installed().FindString(name) == name }

func (s Settings) libraries() string {
	var text strings.Builder
	for _, path := range []string{s.LibraryPath, s.Stubs.CUDA, s.Stubs.NVML, s.MountCheck} {
		if path == "" {
			continue
		}
		text.WriteString(filepath.Base(path))
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			fmt.Fprintf(&text, " %d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// noteLibraries keeps an existing file: it is from the container's creation.
func noteLibraries(dir, libraries string) error {
	path := filepath.Join(dir, librariesFile)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := rawfile.Write(path, []byte(libraries), 0o644); err != nil {
		return fmt.Errorf("record the container's libraries: %w", err)
	}
	return nil
}

// AddLibraries records the libraries of another container that is to mount the files in dir. After a restore the error is
// ErrUnknownLibraries: the containers that run have other files, with an account of their own.
func AddLibraries(dir string, s Settings) error {
	path := filepath.Join(dir, librariesFile)
	have, err := rawfile.Read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record the container's libraries: %w", err)
	}
	text := string(have)
	if text == unknownLibraries {
		return fmt.Errorf("record the container's libraries: %w: wait until all containers of its ResourceClaim have ended", ErrUnknownLibraries)
	}
	for line := range strings.Lines(s.libraries()) {
		if !strings.Contains("\n"+text, "\n"+line) {
			text += line
		}
	}
	if text == string(have) && err == nil {
		return nil
	}
	return atomicfile.Write(path, []byte(text), 0o644)
}

// NoteRestored records that the files are newer than the container. Call it before Populate.
func NoteRestored(dir string) error { return noteLibraries(dir, unknownLibraries) }

// LibrariesOf returns a container's libraries, or ErrUnknownLibraries.
func LibrariesOf(dir string) ([]Library, error) {
	text, err := rawfile.Read(filepath.Join(dir, librariesFile))
	if err != nil {
		return nil, fmt.Errorf("read the container's libraries: %w", err)
	}
	if string(text) == unknownLibraries {
		return nil, ErrUnknownLibraries
	}
	var all []Library
	for line := range strings.Lines(string(text)) {
		var l Library
		var major, minor uint32
		if n, _ := fmt.Sscanf(line, "%s %d:%d %d", &l.Name, &major, &minor, &l.Inode); n == 0 {
			continue
		}
		l.Device = unix.Mkdev(major, minor)
		all = append(all, l)
	}
	return all, nil
}

// LibraryGrace is how long an unused library stays: the runtime wrapper installs one before it records the use.
const LibraryGrace = 10 * time.Minute

// PruneLibraries removes libraries that are older than LibraryGrace and not used by these settings, the files
// of mentions (such as CDI specs) or the claims' containers. It removes nothing while a container's libraries
// are unknown. It reads the mentions before it calls claims, so it finds containers created in between.
func PruneLibraries(dir string, now Settings, at time.Time, mentions []string, claims func() ([]string, error)) (removed []string, err error) {
	needed := map[string]bool{}
	note := func(text []byte) {
		for _, name := range installed().FindAllString(string(text), -1) {
			needed[name] = true
		}
	}
	note([]byte(now.libraries()))
	for _, path := range mentions {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("find needed libraries: %w", err)
		}
		note(text)
	}
	dirs, err := claims()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		used, err := LibrariesOf(dir)
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Lstat(dir); err != nil {
				continue // the claim was released
			}
			err = ErrUnknownLibraries // of an earlier version
		}
		if errors.Is(err, ErrUnknownLibraries) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, l := range used {
			needed[l.Name] = true
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("find unused libraries: %w", err)
	}
	for _, file := range files {
		name := file.Name()
		if !isInstalled(name) || needed[name] || !file.Type().IsRegular() {
			continue
		}
		info, err := file.Info()
		if err == nil && info.ModTime().After(at.Add(-LibraryGrace)) {
			continue
		}
		if err == nil {
			err = os.Remove(filepath.Join(dir, name))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return removed, fmt.Errorf("remove an unused library: %w", err)
		}
		removed = append(removed, name)
	}
	return removed, nil
}

// RemoveLibraries removes all installed files. Containers keep what they have mounted.
func RemoveLibraries(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list libraries: %w", err)
	}
	var errs []error
	for _, file := range files {
		name := file.Name()
		if complete, is := atomicfile.Unfinished(name); is {
			name = complete
		}
		if isInstalled(name) || name == preloadFile {
			errs = append(errs, os.Remove(filepath.Join(dir, file.Name())))
		}
	}
	return errors.Join(errs...)
}

const preloadFile = "ld.so.preload"

const (
	cudaStub       = "libvgpu-cuda"
	nvmlStub       = "libvgpu-nvml"
	mountCheckName = "gpuslice-runtime-"
)

var elfMachines = map[string]elf.Machine{
	"amd64":   elf.EM_X86_64,
	"arm64":   elf.EM_AARCH64,
	"ppc64le": elf.EM_PPC64,
}

// InstallLibrary installs the limiter's library as "libvgpu-<16 hex of its SHA-256>.so", and ld.so.preload beside it.
// Old versions stay, because containers map them. Concurrent calls are safe.
func InstallLibrary(src, dir string) (libPath, preloadPath string, err error) {
	const what = "the limiter's library"
	libPath, err = install(src, dir, "libvgpu-", ".so", what, "build it (make build), or name it (--library)")
	if err != nil {
		return "", "", err
	}
	preloadPath = filepath.Join(filepath.Dir(libPath), preloadFile)
	if err := place(preloadPath, []byte(api.ContainerPreloadedPath+"\n"), 0o644); err != nil {
		return "", "", fmt.Errorf("install %s: %w", what, err)
	}
	return libPath, preloadPath, nil
}

// InstallStubs installs the stub libraries from the directory of src, the limiter's library.
func InstallStubs(src, dir string) (stubs Stubs, err error) {
	for name, path := range map[string]*string{cudaStub: &stubs.CUDA, nvmlStub: &stubs.NVML} {
		*path, err = install(filepath.Join(filepath.Dir(src), name+".so"), dir, name+"-", ".so",
			"the limiter's stub library", "build it (make build), or set limiter mode to preload")
		if err != nil {
			return Stubs{}, err
		}
	}
	return stubs, nil
}

// InstallMountCheck installs gpuslice-runtime for Settings.MountCheck.
func InstallMountCheck(src, dir string) (path string, err error) {
	return install(src, dir, mountCheckName, "", "the check of containers' mounts", "gpuslice-runtime must be in the directory of gpuslice-agent")
}

// install installs a program or a library, with its hash in the name. advice is for a missing file.
func install(src, dir, prefix, suffix, what, advice string) (path string, err error) {
	data, err := os.ReadFile(src)
	if err != nil {
		return "", fmt.Errorf("install %s: %w: %s", what, err, advice)
	}
	if suffix == ".so" {
		if err := checkLibrary(data); err != nil {
			return "", fmt.Errorf("install %s: %s %w", what, src, err)
		}
	}
	if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = checkExecutable(dir)
	}
	sum := sha256.Sum256(data)
	path = filepath.Join(dir, prefix+hex.EncodeToString(sum[:8])+suffix)
	if err == nil {
		err = place(path, data, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("install %s: %w", what, err)
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // LibraryGrace starts again for an existing file
	return path, nil
}

func checkLibrary(data []byte) error {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("is not an ELF file: %w", err)
	}
	defer f.Close()
	if f.Type != elf.ET_DYN {
		return fmt.Errorf("is not a shared object (its ELF type is %v)", f.Type)
	}
	if want, known := elfMachines[runtime.GOARCH]; known && f.Machine != want {
		return fmt.Errorf("is for %v, and this machine is %v: build it for %s", f.Machine, want, runtime.GOARCH)
	}
	if f.Section(".dynsym") == nil {
		return errors.New("exports no symbols: it is not the limiter's library")
	}
	return nil
}

// checkExecutable refuses a noexec mount: the loader would continue without the limiter.
func checkExecutable(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read the mount options of %s: %w", dir, err)
	}
	return checkMountFlags(dir, int64(st.Flags))
}

func checkMountFlags(dir string, flags int64) error {
	if flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is on a filesystem mounted noexec, and containers must map the library as code: "+
			"choose another directory (--library-dir), or remount that one with exec", dir)
	}
	return nil
}

// place keeps a file with the same content and mode.
func place(path string, data []byte, mode fs.FileMode) error {
	if info, err := os.Lstat(path); err == nil && info.Mode() == mode {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
			return nil
		}
	}
	return atomicfile.WriteSync(path, data, mode)
}
