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

	"github.com/gpuslice/gpuslice/api"
)

// Rootfs has the facts about a root file system that decide how the limiter can be loaded.
type Rootfs struct {
	// Glibc: a loader has glibc's name. It can be of another libc (gcompat), which ignores /etc/ld.so.preload.
	Glibc bool
	// Musl: it has musl's loader, which ignores /etc/ld.so.preload.
	Musl bool
	// Preload is its /etc/ld.so.preload, one library a line.
	Preload string
	// Links maps paths in the loader's variables to other resolved paths.
	Links map[string]string
}

// Loaders by GOARCH, from ld.so(8), the psABIs, and musl ("ld-musl-$(ARCH).so.1").
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

// maxPreload bounds /etc/ld.so.preload in bytes.
const maxPreload = 64 << 10

// maxLoads bounds the paths in the loader's variables.
const maxLoads = 1000

// RootfsFacts reads a mounted root file system, which is not trusted: links stay inside of it.
func RootfsFacts(root string, env []string) (*Rootfs, error) {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the container's root file system: %w", err)
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

func (r *Rootfs) follow(file string) string {
	if r != nil && r.Links[file] != "" {
		return r.Links[file]
	}
	return filepath.Clean(file)
}

// ignoresPreload passes an unknown root file system (nil).
func (r *Rootfs) ignoresPreload() error {
	switch {
	case r == nil:
		return nil
	case r.Musl:
		return errors.New("the image has musl's loader, which does not read /etc/ld.so.preload")
	case !r.Glibc:
		return errors.New("the image has no loader of glibc's, so no program of it reads /etc/ld.so.preload")
	}
	return nil
}

// openIn opens a file inside root with O_PATH, or returns nil.
func openIn(root *os.File, name string) (*os.File, error) {
	f, err := pathrs.OpenatInRoot(root, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	return f, err
}

func openRegular(root *os.File, name string) (*os.File, error) {
	f, err := openIn(root, name)
	if err != nil {
		return nil, fmt.Errorf("open %s in the image: %w", name, err)
	}
	if f == nil {
		return nil, nil
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
		if f, err := openRegular(root, name); f != nil || err != nil {
			f.Close()
			return f != nil, err
		}
	}
	return false, nil
}

func ownPreload(root *os.File) (string, error) {
	handle, err := openRegular(root, api.ContainerPreloadPath)
	if err != nil || handle == nil {
		return "", err
	}
	defer handle.Close()
	f, err := pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC)
	var data []byte
	if err == nil {
		defer f.Close()
		data, err = io.ReadAll(io.LimitReader(f, maxPreload+1))
	}
	if err != nil {
		return "", fmt.Errorf("read the image's own %s: %w", api.ContainerPreloadPath, err)
	}
	if len(data) > maxPreload {
		return "", fmt.Errorf("the image's own %s is longer than %d bytes: make it shorter", api.ContainerPreloadPath, maxPreload)
	}
	return preloadList(string(data)), nil
}

// preloadList reads a list as glibc does, without the limiter.
func preloadList(text string) string {
	var list strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, name := range strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \t\r\n:", c) }) {
			if name != api.ContainerPreloadedPath {
				list.WriteString(name + "\n")
			}
		}
	}
	return list.String()
}

// PopulatePreload writes /etc/ld.so.preload for an image with its own: the limiter first. Call it with [Populate].
func PopulatePreload(dir string, r *Rootfs) error {
	if r == nil || r.Preload == "" {
		return nil
	}
	return place(mergedPreload(dir), []byte(api.ContainerPreloadedPath+"\n"+r.Preload), 0o644)
}

func mergedPreload(dir string) string { return filepath.Join(dir, preloadFile) }
