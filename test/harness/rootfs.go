package harness

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Root is a root file system that is small enough to read.
type Root struct {
	Dirs []string
	// Files maps paths to the host's files with their content.
	Files map[string]string
	// Links are by path, with what they point to.
	Links map[string]string
	// Texts are small files by path.
	Texts map[string]string
}

// Where the driver's libraries are in containers, by the simulated driver's CDI spec.
var driverDir = "/usr/lib/" + Triplet

// GlibcRoot has this machine's C library, Debian's static busybox and the CUDA workloads.
func GlibcRoot() (Root, error) {
	r := bareRoot()
	// A dynamic program of the distribution: it shows that the preload reaches what is not ours.
	r.Files["bin/dynamic-env"] = "/usr/bin/env"
	r.Files[Loader[1:]] = Loader
	for _, name := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"} {
		r.Files["lib/"+Triplet+"/"+name] = "/lib/" + Triplet + "/" + name
	}
	workloads, err := Artefact("workloads")
	if err != nil {
		return Root{}, err
	}
	programs, err := os.ReadDir(workloads)
	if err != nil {
		return Root{}, err
	}
	for _, p := range programs {
		if p.Type().IsRegular() && !strings.Contains(p.Name(), ".") {
			r.Files["opt/workloads/"+p.Name()] = filepath.Join(workloads, p.Name())
		}
	}
	return r, nil
}

// GcompatEnv has musl's programs load the stand-in for glibc, as Alpine's users do it.
const GcompatEnv = "LD_PRELOAD=/lib/libgcompat.so.0"

// MuslRoot is like an alpine image: musl is its C library, and the workloads are built
// for it (in dir). With gcompat it has what Alpine's package of that name adds, of which
// the driver, a library for glibc, needs one function: without, no program loads it.
func MuslRoot(dir string, gcompat bool) (Root, error) {
	r := bareRoot()
	r.Files[MuslLoader[1:]] = MuslLoader
	// musl reads the directories of libraries from here.
	r.Texts["etc/"+strings.TrimSuffix(filepath.Base(MuslLoader), ".so.1")+".path"] = "/lib\n" + driverDir + "\n"
	root, err := Repository()
	if err != nil {
		return Root{}, err
	}
	sources := filepath.Join(root, "testdata", "workloads")
	build := func(name string, args ...string) error {
		args = append([]string{"-std=gnu11", "-O1", "-pthread", "-o", filepath.Join(dir, name)}, args...)
		if out, err := exec.Command("musl-gcc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s for musl (Debian's package musl-tools): %w\n%s", name, err, out)
		}
		r.Files["opt/workloads/"+name] = filepath.Join(dir, name)
		return nil
	}
	source := func(name string) string { return filepath.Join(sources, name) }
	for name, args := range map[string][]string{
		"meminfo":      {source("meminfo.c"), source("show.c"), source("common.c")},
		"alloc":        {source("alloc.c"), source("common.c")},
		"alloc-static": {source("alloc.c"), source("common.c"), "-static"},
	} {
		if err := build(name, args...); err != nil {
			return Root{}, err
		}
	}
	if !gcompat {
		return r, nil
	}
	text := filepath.Join(dir, "gcompat.c")
	err = os.WriteFile(text, []byte(`
int pthread_atfork(void (*)(void), void (*)(void), void (*)(void));
int __register_atfork(void (*a)(void), void (*b)(void), void (*c)(void), void *d) { (void)d; return pthread_atfork(a, b, c); }
`), 0o600)
	if err != nil {
		return Root{}, err
	}
	if err := build("gcompat", text, "-shared", "-fPIC"); err != nil {
		return Root{}, err
	}
	delete(r.Files, "opt/workloads/gcompat")
	r.Files["lib/libgcompat.so.0"] = filepath.Join(dir, "gcompat")
	r.Links["lib/"+filepath.Base(Loader)] = "libgcompat.so.0"
	return r, nil
}

// busybox is the static one that test/setup.sh unpacked, where the machine has none.
func busybox() string {
	if path, err := Tool("busybox"); err == nil {
		return path
	}
	if path, err := exec.LookPath("busybox"); err == nil {
		return path
	}
	return "/bin/busybox"
}

// bareRoot has directories, a shell and users.
func bareRoot() Root {
	r := Root{
		Dirs:  []string{"bin", "dev", "etc", "lib", "lib64", "lib/" + Triplet, "opt", "opt/workloads", "proc", "run", "sys", "tmp", "usr", "usr/lib", "usr/lib/" + Triplet, "usr/local", "var"},
		Files: map[string]string{"bin/busybox": busybox()},
		Links: map[string]string{},
		Texts: map[string]string{"etc/passwd": "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n"},
	}
	for _, applet := range busyboxApplets {
		r.Links["bin/"+applet] = "busybox"
	}
	return r
}

// Write makes the root file system in a directory.
func (r Root) Write(dir string) error {
	for _, sub := range r.Dirs {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	for name, target := range r.Links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	write := func(name string, data []byte) error {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o755)
	}
	for name, source := range r.Files {
		data, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := write(name, data); err != nil {
			return err
		}
	}
	for name, text := range r.Texts {
		if err := write(name, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// layer is the root file system as the one layer of an image.
func (r Root) layer() ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range r.Dirs {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Links)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: r.Links[name], Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	for name, source := range r.Files {
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		if err := writeFile(w, name, data, 0o755); err != nil {
			return nil, err
		}
	}
	for name, text := range r.Texts {
		if err := writeFile(w, name, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}
