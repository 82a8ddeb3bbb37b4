package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// Where things are in the image. The chart and the agent's options say the same.
const (
	binDir     = "usr/local/bin"
	limiterDir = "usr/local/lib/gpuslice"
)

// programs and limiter are what is packed of build/bin and build/lib.
var (
	programs = []string{"gpuslice", "gpuslice-agent", "gpuslice-runtime", "gpuslice-scheduler"}
	limiter  = []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so"}
)

// user is who the programs are that need no root: the agent alone does.
const user = "65532:65532"

// authorities is Debian's bundle of certificate authorities.
const authorities = "/etc/ssl/certs/ca-certificates.crt"

// texts are small files, readable by everybody.
var texts = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/:/usr/sbin/nologin\ngpuslice:x:65532:65532:gpuslice:/:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\ngpuslice:x:65532:\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
	// NVIDIA's runtime runs the host's ldconfig over the container, which reads this.
	"etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
}

// directories are what others are mounted on, or make files in.
var dirs = []string{"dev", "etc/ld.so.conf.d", "proc", "run", "sys", "tmp", "usr/lib64", "var/lib"}

// links are symbolic links, with what they point to.
var links = map[string]string{"var/run": "../run"}

// entry is one path of the image: a file with a source or a text, a link, or a directory.
type entry struct {
	path string
	mode fs.FileMode // with its type
	// One of these is set; none for a directory.
	source, text, link string
}

// root is the image's root file system: entries in the order of their paths, each directory before what is in it.
type root []entry

// newRoot puts together what the image has. Nothing is copied yet.
func newRoot(repository string, from host) (root, error) {
	byPath := map[string]entry{}
	add := func(e entry) {
		byPath[e.path] = e
		for dir := path.Dir(e.path); dir != "."; dir = path.Dir(dir) {
			if _, there := byPath[dir]; !there {
				byPath[dir] = entry{path: dir, mode: fs.ModeDir | 0o755}
			}
		}
	}
	var built []string
	for _, name := range programs {
		source := filepath.Join(repository, "build", "bin", name)
		built = append(built, source)
		add(entry{path: path.Join(binDir, name), mode: 0o755, source: source})
	}
	for _, name := range limiter {
		source := filepath.Join(repository, "build", "lib", name)
		built = append(built, source)
		add(entry{path: path.Join(limiterDir, name), mode: 0o755, source: source})
	}
	for _, file := range built {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%w: run `make build` first", err)
		}
	}
	libraries, err := from.closure(built[:len(programs)], driverNeeds...)
	if err != nil {
		return nil, err
	}
	for at, source := range libraries {
		add(entry{path: at, mode: 0o755, source: source})
	}
	if _, err := os.Stat(authorities); err != nil {
		return nil, fmt.Errorf("%w: install Debian's package ca-certificates", err)
	}
	add(entry{path: authorities[1:], mode: 0o644, source: authorities})
	add(entry{path: "usr/share/doc/gpuslice/LICENSE", mode: 0o644, source: filepath.Join(repository, "LICENSE")})
	// Where the C library is passed on, its licence is too.
	for _, name := range []string{"libc6", "ca-certificates"} {
		file := filepath.Join("/usr/share/doc", name, "copyright")
		if _, err := os.Stat(file); err == nil {
			add(entry{path: file[1:], mode: 0o644, source: file})
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for at, text := range texts {
		add(entry{path: at, mode: 0o644, text: text})
	}
	for at, target := range links {
		add(entry{path: at, mode: fs.ModeSymlink | 0o777, link: target})
	}
	for _, at := range dirs {
		add(entry{path: at, mode: fs.ModeDir | 0o755})
	}
	var r root
	for _, at := range slices.Sorted(maps.Keys(byPath)) {
		r = append(r, byPath[at])
	}
	return r, nil
}

// content is a file's.
func (e entry) content() ([]byte, error) {
	if e.source == "" {
		return []byte(e.text), nil
	}
	return os.ReadFile(e.source)
}

// writeDir makes the root file system as a directory, again.
func (r root) writeDir(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, e := range r {
		if err := e.write(filepath.Join(dir, e.path)); err != nil {
			return err
		}
	}
	return nil
}

// write makes one path, with its mode whatever the umask.
func (e entry) write(at string) error {
	switch e.mode.Type() {
	case fs.ModeSymlink:
		return os.Symlink(e.link, at)
	case fs.ModeDir:
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
	default:
		data, err := e.content()
		if err != nil {
			return err
		}
		if err := os.WriteFile(at, data, 0o600); err != nil {
			return err
		}
	}
	return os.Chmod(at, e.mode.Perm())
}
