// Command image builds gpuslice's container image from the output of `make build`: the root file system as a
// directory, for the Dockerfile, and an OCI archive. The image has all programs, no shell, and this machine's
// C library, or, for another architecture, that of its compiler. The same build gives the same bytes.
package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	repository, out, name, version, revision string
	// arch is the architecture of the programs, as Go names it.
	arch string
	// libraries has the C library of another architecture than this machine's.
	libraries string
}

func run(args []string) error {
	var o options
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&o.repository, "repository", ".", "source `directory` with the output of `make build`")
	f.StringVar(&o.out, "out", "", "`directory` for root/ and gpuslice.tar (default: build/image in the repository)")
	f.StringVar(&o.name, "name", "gpuslice:dev", "`name` of the image in the archive")
	f.StringVar(&o.version, "version", "dev", "`version` for the image's labels")
	f.StringVar(&o.revision, "revision", "", "commit for the image's labels")
	f.StringVar(&o.arch, "arch", runtime.GOARCH, "`architecture` of the programs: amd64 or arm64")
	f.StringVar(&o.libraries, "libraries", "", "`directory` on this machine with the C library of -arch (default: this machine's)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if triplets[o.arch] == "" {
		return fmt.Errorf("-arch %s: there are images for amd64 and arm64", o.arch)
	}
	build := filepath.Join(o.repository, "build")
	if o.arch != runtime.GOARCH {
		if o.libraries == "" {
			return fmt.Errorf("-arch %s is not this machine's: -libraries names the directory of its C library", o.arch)
		}
		build = filepath.Join(build, o.arch)
	}
	if o.out == "" {
		o.out = filepath.Join(build, "image")
	}
	syscall.Umask(0o022) // the modes of root/ must not depend on the caller
	root, path := filepath.Join(o.out, "root"), filepath.Join(o.out, "gpuslice.tar")
	if err := writeRoot(root, build, o); err != nil {
		return err
	}
	size, err := writeArchive(path, root, o)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	fmt.Printf("%s: %s, %d MiB\n", path, o.name, size>>20)
	return nil
}

const (
	binDir     = "usr/local/bin"
	limiterDir = "usr/local/lib/gpuslice"
	// user runs the programs, except the agent, which needs root.
	user = "65532:65532"
	// authorities is Debian's bundle of certificate authorities.
	authorities = "/etc/ssl/certs/ca-certificates.crt"
	// notices has the licences of the modules in the programs.
	notices = "THIRD-PARTY-NOTICES"
)

// The files of build/bin and build/lib.
var (
	programs = []string{"gpuslice", "gpuslice-agent", "gpuslice-runtime", "gpuslice-scheduler"}
	limiter  = []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so", "gpuslice-probe"}
)

var texts = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/:/usr/sbin/nologin\ngpuslice:x:65532:65532:gpuslice:/:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\ngpuslice:x:65532:\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
	// NVIDIA's runtime runs the host's ldconfig in the container, which reads this.
	"etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
}

// dirs are mount points, and directories in which other programs create files.
var dirs = []string{"dev", "etc/ld.so.conf.d", "proc", "run", "sys", "tmp", "usr/lib64", "var/lib"}

// writeRoot writes the image's root file system.
func writeRoot(root, build string, o options) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	var binaries []string
	for _, name := range programs {
		binaries = append(binaries, filepath.Join(build, "bin", name))
		if err := copyFile(filepath.Join(root, binDir, name), filepath.Join(build, "bin", name), 0o755); err != nil {
			return fmt.Errorf("%w: run `make build` first", err)
		}
	}
	for _, name := range limiter {
		if err := copyFile(filepath.Join(root, limiterDir, name), filepath.Join(build, "lib", name), 0o755); err != nil {
			return fmt.Errorf("%w: run `make build` first", err)
		}
	}
	libraries, err := closure(machines[o.arch], o.libraryDirs(), binaries, driverNeeds...)
	if err != nil {
		return err
	}
	for to, from := range libraries {
		if err := copyFile(filepath.Join(root, to), from, 0o755); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(root, authorities), authorities, 0o644); err != nil {
		return fmt.Errorf("%w: install Debian's package ca-certificates", err)
	}
	if err := copyFile(filepath.Join(root, "usr/share/doc/gpuslice/LICENSE"), filepath.Join(o.repository, "LICENSE"), 0o644); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(root, "usr/share/doc/gpuslice", notices), filepath.Join(o.repository, "build", notices), 0o644); err != nil {
		return fmt.Errorf("%w: run `make notices` first", err)
	}
	// The licences of the C library and of the bundle have to be distributed with them.
	for _, name := range []string{"libc6", "ca-certificates"} {
		file := filepath.Join("/usr/share/doc", name, "copyright")
		if err := copyFile(filepath.Join(root, file), file, 0o644); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	for file, text := range texts {
		if err := writeFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	return os.Symlink("../run", filepath.Join(root, "var/run"))
}

func copyFile(to, from string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, data, mode)
}

func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}

// triplets are Debian's names of the architectures.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// machines are what their programs' headers have.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// libraryDir is a directory on this machine, and where its libraries are in the image.
type libraryDir struct{ here, image string }

// libraryDirs are the search path of Debian's loader.
func (o options) libraryDirs() (dirs []libraryDir) {
	triplet := triplets[o.arch]
	if o.libraries != "" {
		return []libraryDir{{o.libraries, "/lib/" + triplet}}
	}
	for _, dir := range []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		dirs = append(dirs, libraryDir{dir, dir})
	}
	return dirs
}

// driverNeeds are the libraries of NVIDIA's libraries, which are mounted into the agent's container.
var driverNeeds = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}

// closure returns the loader and all needed libraries: this machine's files by their paths in the image.
func closure(machine elf.Machine, dirs []libraryDir, programs []string, libraries ...string) (files map[string]string, err error) {
	files = map[string]string{}
	pending := slices.Clone(libraries)
	for _, program := range programs {
		interpreter, needed, err := linked(machine, program)
		if err != nil {
			return nil, err
		}
		if interpreter != "" && files[interpreter] == "" { // else it is static
			_, files[interpreter], err = find(dirs, filepath.Base(interpreter))
			if err != nil {
				return nil, err
			}
		}
		pending = append(pending, needed...)
	}
	seen := map[string]bool{}
	for len(pending) > 0 {
		name := pending[0]
		pending = pending[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		to, file, err := find(dirs, name)
		if err != nil {
			return nil, err
		}
		_, needed, err := linked(machine, file)
		if err != nil {
			return nil, err
		}
		pending = append(pending, needed...)
		if !strings.HasPrefix(name, "ld-linux") { // the loader has its own path, from the programs
			files[to] = file
		}
	}
	return files, nil
}

// find looks up a library as the loader does.
func find(dirs []libraryDir, name string) (image, here string, err error) {
	if strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%s is linked by its path: only libraries that are linked by name are supported", name)
	}
	var searched []string
	for _, dir := range dirs {
		file := filepath.Join(dir.here, name)
		if _, err := os.Stat(file); err == nil {
			return filepath.Join(dir.image, name), file, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", "", err
		}
		searched = append(searched, dir.here)
	}
	return "", "", fmt.Errorf("library %s not found in %s", name, strings.Join(searched, ", "))
}

// linked reads a file's loader and libraries.
func linked(machine elf.Machine, file string) (interpreter string, needed []string, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	if f.Machine != machine {
		return "", nil, fmt.Errorf("%s is for %s, and the image for %s", file, f.Machine, machine)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		data, err := io.ReadAll(p.Open())
		if err != nil {
			return "", nil, fmt.Errorf("%s: read the name of its loader: %w", file, err)
		}
		interpreter = strings.TrimRight(string(data), "\x00")
	}
	if needed, err = f.ImportedLibraries(); err != nil {
		return "", nil, fmt.Errorf("%s: read its libraries: %w", file, err)
	}
	return interpreter, needed, nil
}
