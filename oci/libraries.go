package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// librariesFile, in the directory of a claim, lists the files of the library directory that its container was created
// with, one in a line: "libvgpu-0123456789abcdef.so 254:1 4711", with device and inode if they are known.
const librariesFile = "libraries"

// unknownLibraries is the content of librariesFile after the claim was restored while its container ran.
const unknownLibraries = "unknown\n"

// Library is a file of the library directory that a container was created with.
type Library struct {
	Name string
	// Device and Inode identify the file; 0: not known.
	Device, Inode uint64
}

// ErrUnknownLibraries says that the claim's files are newer than its container.
var ErrUnknownLibraries = errors.New("the claim was restored while its container ran: the files that the container has mounted are not known")

// installed matches the names that InstallLibrary, InstallStubs and InstallMountCheck give. It is compiled at its first
// use, because gpuslice-runtime starts with each container and never uses it.
var installed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`libvgpu(-cuda|-nvml)?-[0-9a-f]{16}\.so|` + mountCheckName + `[0-9a-f]{16}`)
})

// libraries are the files that a container of these settings has mounted.
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

// noteLibraries writes librariesFile. One that is there is right: it is of when the container was made.
func noteLibraries(dir, libraries string) error {
	path := filepath.Join(dir, librariesFile)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := rawfile.Write(path, []byte(libraries), 0o644); err != nil {
		return fmt.Errorf("note which limiter a container has: %w", err)
	}
	return nil
}

// NoteRestored records that the claim's files are newer than its container. Call it before Populate.
func NoteRestored(dir string) error { return noteLibraries(dir, unknownLibraries) }

// LibrariesOf returns the libraries that the container of a claim was created with, or ErrUnknownLibraries.
func LibrariesOf(dir string) ([]Library, error) {
	text, err := rawfile.Read(filepath.Join(dir, librariesFile))
	if err != nil {
		return nil, fmt.Errorf("find which limiter a container has: %w", err)
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

// LibraryGrace is how long a library stays that nobody needs, from when it was installed. The runtime wrapper installs what it is
// about to give, and only then says that it does.
const LibraryGrace = 10 * time.Minute

// PruneLibraries removes from a library directory what nobody needs any more: libraries that are not installed now (by these
// settings), that are named in none of these files, such as CDI specs, that no container of the directories of claims was made with,
// and that are older than LibraryGrace at that time. It removes nothing while there is a container of which it is not known.
//
// The claims are asked for after the mentions were read: what is made from one of these meanwhile is among the claims then.
//
// One that is removed by mistake is in nobody's way: who has it mounted keeps it.
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
			return nil, fmt.Errorf("look for libraries that are needed: %w", err)
		}
		note(text)
	}
	dirs, err := claims()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, librariesFile))
		if err == nil && string(text) == unknownLibraries {
			return nil, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Lstat(dir); err == nil {
				return nil, nil // an earlier version's, which did not say
			}
			continue // it has gone since
		}
		if err != nil {
			return nil, fmt.Errorf("look which limiter a container has: %w", err)
		}
		note(text)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for old libraries: %w", err)
	}
	for _, file := range files {
		name := file.Name()
		if installed().FindString(name) != name || needed[name] || !file.Type().IsRegular() {
			continue
		}
		info, err := file.Info()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("look how old a library is: %w", err)
		}
		if err != nil || info.ModTime().After(at.Add(-LibraryGrace)) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("remove an old library: %w", err)
		}
		removed = append(removed, name)
	}
	return removed, nil
}

// RemoveLibraries takes everything of ours out of a library directory. Containers that run keep what they have mounted.
func RemoveLibraries(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for libraries: %w", err)
	}
	var errs []error
	for _, file := range files {
		if name := file.Name(); installed().FindString(name) == name || name == preloadFile {
			errs = append(errs, os.Remove(filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}
