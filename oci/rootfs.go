package oci

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// Rootfs are the facts about a container's root file system that decide how the
// limiter can be brought into its programs.
type Rootfs struct {
	// Glibc says that it has a dynamic loader under glibc's name. Glibc's own reads
	// /etc/ld.so.preload; a stand-in of another libc's (gcompat) has the name and doesn't.
	Glibc bool
	// Musl says that it has musl's loader, which doesn't.
	Musl bool
	// Preload is what the image's own /etc/ld.so.preload asks for; empty for nothing.
	Preload string
	// Links are the resolved paths, inside of it, of paths with links in the loader's variables.
	Links map[string]string
}

// Where the loaders are, by Go's names of the machines and by the ABIs: glibc's is fixed
// for each machine (ld.so(8) and the psABIs), musl's is in /lib ("ld-musl-$(ARCH).so.1").
var (
	glibcLoaders = map[string][]string{
		"amd64":   {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-x86-64.so.2"},
		"arm64":   {"/lib/ld-linux-aarch64.so.1"},
		"ppc64le": {"/lib64/ld64.so.2"},
	}
	muslLoaders = map[string][]string{
		"amd64":   {"/lib/ld-musl-x86_64.so.1"},
		"arm64":   {"/lib/ld-musl-aarch64.so.1"},
		"ppc64le": {"/lib/ld-musl-powerpc64le.so.1"},
	}
)

// maxPreload is the longest /etc/ld.so.preload that is read. glibc has no limit; a
// list of libraries is short.
const maxPreload = 64 << 10

// maxLoads bounds the paths in the loader's variables.
const maxLoads = 1000

// RootfsFacts looks into a container's root file system, which has to be mounted and
// is not trusted: links are followed inside of it, and it is only read. env is the container's
// environment.
func RootfsFacts(root string, env []string) (*Rootfs, error) {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("look into the container's root file system: %w", err)
	}
	defer dir.Close()
	r := &Rootfs{}
	if r.Glibc, err = hasFile(dir, glibcLoaders[runtime.GOARCH]); err != nil {
		return nil, err
	}
	if r.Musl, err = hasFile(dir, muslLoaders[runtime.GOARCH]); err != nil {
		return nil, err
	}
	if r.Preload, err = ownPreload(dir); err != nil {
		return nil, err
	}
	return r, r.findLinks(root, env)
}

// findLinks resolves the paths in the loader's variables and in ld.so.preload.
func (r *Rootfs) findLinks(root string, env []string) error {
	c := Container{Env: env}
	lists := []string{r.Preload}
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"} {
		lists = append(lists, c.allenv(name)...)
	}
	files := listed(strings.Join(lists, "\n"))
	if len(files) > maxLoads {
		return fmt.Errorf("its LD_PRELOAD, LD_AUDIT, LD_LIBRARY_PATH and /etc/ld.so.preload have %d paths, more than %d: shorten them", len(files), maxLoads)
	}
	for _, file := range append(files, driverDir) {
		if !filepath.IsAbs(file) {
			continue
		}
		found, err := securejoin.SecureJoin(root, file)
		if err != nil {
			return fmt.Errorf("follow %.200q in the image: %w", file, err)
		}
		inside := filepath.Join("/", strings.TrimPrefix(found, filepath.Clean(root)))
		if inside == filepath.Clean(file) {
			continue
		}
		if r.Links == nil {
			r.Links = map[string]string{}
		}
		r.Links[file] = inside
	}
	return nil
}

// follow resolves a path, as far as the root file system was read.
func (r *Rootfs) follow(file string) string {
	if r != nil && r.Links[file] != "" {
		return r.Links[file]
	}
	return filepath.Clean(file)
}

// ignoresPreload says why /etc/ld.so.preload does not hold every program there is. Of
// a root file system that is not known (nil) it is taken to.
func (r *Rootfs) ignoresPreload() error {
	switch {
	case r == nil:
		return nil
	case r.Musl:
		return errors.New("the image has musl's loader, which does not read /etc/ld.so.preload")
	case !r.Glibc:
		return errors.New("the image has no loader of glibc's, so that nothing in it reads /etc/ld.so.preload")
	}
	return nil
}

// openRegular finds a regular file inside a root, by a handle that can't be read yet. There
// is none where nothing is there, or something else.
//
// The kernel is asked by itself first, which takes a fifth of the library's time. What is
// neither found nor certainly absent is the library's: it knows kernels without openat2,
// and races.
func openRegular(root *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	var f *os.File
	switch err {
	case nil:
		f = os.NewFile(uintptr(fd), name)
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return nil, nil
	default:
		f, err = pathrs.OpenatInRoot(root, name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for %s in the image: %w", name, err)
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, err
	}
	return f, nil
}

func hasFile(root *os.File, names []string) (bool, error) {
	for _, name := range names {
		f, err := openRegular(root, name)
		if err != nil {
			return false, err
		}
		if f != nil {
			return true, f.Close()
		}
	}
	return false, nil
}

// ownPreload reads the image's own list, normalised: one library a line.
func ownPreload(root *os.File) (string, error) {
	handle, err := openRegular(root, limiter.ContainerPreloadPath)
	if err != nil || handle == nil {
		return "", err
	}
	defer handle.Close()
	if info, err := handle.Stat(); err == nil && info.Size() == 0 {
		return "", nil // as runc leaves one where a container's was mounted
	}
	f, err := pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("read the image's own %s: %w", limiter.ContainerPreloadPath, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPreload+1))
	if err != nil {
		return "", fmt.Errorf("read the image's own %s: %w", limiter.ContainerPreloadPath, err)
	}
	if len(data) > maxPreload {
		return "", fmt.Errorf("the image's own %s is longer than %d bytes: make it shorter", limiter.ContainerPreloadPath, maxPreload)
	}
	return preloadList(string(data)), nil
}

// preloadList reads a list as glibc does: names between white space and colons, and
// comments from # to the end of a line. The limiter's own name is left out.
func preloadList(text string) string {
	var list strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, name := range strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \t\r\n:", c) }) {
			if name != limiter.ContainerLibraryPath {
				list.WriteString(name + "\n")
			}
		}
	}
	return list.String()
}

// PopulatePreload makes the /etc/ld.so.preload of a container whose image has one of
// its own: the limiter first, then what the image asks for. Where the image has none
// it does nothing. It belongs beside [Populate], and may be called again.
func PopulatePreload(dir string, r *Rootfs) error {
	if r == nil || r.Preload == "" {
		return nil
	}
	return place(mergedPreload(dir), []byte(limiter.ContainerLibraryPath+"\n"+r.Preload), 0o644)
}

// mergedPreload is that file in the directory of a claim.
func mergedPreload(dir string) string { return filepath.Join(dir, preloadFile) }
