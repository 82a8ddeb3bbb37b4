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
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// preloadFile is the host's file that is mounted as /etc/ld.so.preload.
const preloadFile = "ld.so.preload"

// elfMachines are the machines that the library can be built for, by Go's names.
var elfMachines = map[string]elf.Machine{
	"amd64":   elf.EM_X86_64,
	"arm64":   elf.EM_AARCH64,
	"ppc64le": elf.EM_PPC64,
}

// InstallLibrary puts the limiter's library into a directory of the host, under a
// name made of its content ("libvgpu-<16 hex of its SHA-256>.so"), with the
// ld.so.preload file beside it, and returns both paths.
//
// Nothing is overwritten in place: containers map the library as code. A new
// version gets a new name, an old one stays for the containers that use it. It
// may be called again, and by several at once.
func InstallLibrary(src, dir string) (libPath, preloadPath string, err error) {
	data, err := os.ReadFile(src)
	if err != nil {
		return "", "", fmt.Errorf("install the limiter's library: %w: build it (make build), or name it (--library)", err)
	}
	if err := checkLibrary(data); err != nil {
		return "", "", fmt.Errorf("install the limiter's library: %s %w", src, err)
	}
	if libPath, err = placeByContent(dir, "libvgpu-", ".so", data); err != nil {
		return "", "", fmt.Errorf("install the limiter's library: %w", err)
	}
	preloadPath = filepath.Join(filepath.Dir(libPath), preloadFile)
	if err := place(preloadPath, []byte(limiter.ContainerLibraryPath+"\n"), 0o644); err != nil {
		return "", "", fmt.Errorf("install the limiter's library: %w", err)
	}
	return libPath, preloadPath, nil
}

// The fronts, beside the library where it is built and by their content where it is
// installed.
const (
	cudaStub = "libvgpu-cuda"
	nvmlStub = "libvgpu-nvml"
)

// InstallStubs puts the libraries of mode library beside the limiter's, as
// InstallLibrary does with that. They are looked for where the limiter's (src) is.
func InstallStubs(src, dir string) (Stubs, error) {
	cuda, err := installStub(src, dir, cudaStub)
	if err != nil {
		return Stubs{}, err
	}
	nvml, err := installStub(src, dir, nvmlStub)
	return Stubs{CUDA: cuda, NVML: nvml}, err
}

func installStub(library, dir, name string) (string, error) {
	src := filepath.Join(filepath.Dir(library), name+".so")
	data, err := os.ReadFile(src)
	if err != nil {
		return "", fmt.Errorf("install the limiter's front: %w: build it (make build), or set limiter mode to preload", err)
	}
	if err := checkLibrary(data); err != nil {
		return "", fmt.Errorf("install the limiter's front: %s %w", src, err)
	}
	path, err := placeByContent(dir, name+"-", ".so", data)
	if err != nil {
		return "", fmt.Errorf("install the limiter's front: %w", err)
	}
	return path, nil
}

// InstallMountCheck installs gpuslice-runtime beside the limiter's libraries, under a name with
// its hash, for Settings.MountCheck.
func InstallMountCheck(src, dir string) (string, error) {
	data, err := os.ReadFile(src)
	if err != nil {
		return "", fmt.Errorf("install the check of containers' mounts: %w: gpuslice-runtime must be in the directory of gpuslice-agent", err)
	}
	path, err := placeByContent(dir, mountCheckName, "", data)
	if err != nil {
		return "", fmt.Errorf("install the check of containers' mounts: %w", err)
	}
	return path, nil
}

// mountCheckName is the prefix of that program's name.
const mountCheckName = "gpuslice-runtime-"

// placeByContent writes a program or a library into a directory, under a name with 16
// hexadecimal digits of its SHA-256.
func placeByContent(dir, prefix, suffix string, data []byte) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make its directory: %w", err)
	}
	if err := checkExecutable(dir); err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	path := filepath.Join(dir, prefix+hex.EncodeToString(sum[:8])+suffix)
	if err := place(path, data, 0o755); err != nil {
		return "", err
	}
	// One that was there already is as good as new: see LibraryGrace. Where that can't be said it is there all the same.
	now := time.Now()
	_ = os.Chtimes(path, now, now)
	return path, nil
}

// checkLibrary wants a shared object that containers of this machine can load.
func checkLibrary(data []byte) error {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("is not an ELF file: %w", err)
	}
	defer f.Close()
	if f.Type != elf.ET_DYN {
		return fmt.Errorf("is not a shared object (its ELF type is %v)", f.Type)
	}
	want, known := elfMachines[runtime.GOARCH]
	if known && f.Machine != want {
		return fmt.Errorf("is for %v, and this machine is %v: build it for %s", f.Machine, want, runtime.GOARCH)
	}
	if f.Section(".dynsym") == nil {
		return errors.New("exports no symbols: it is not the limiter's library")
	}
	return nil
}

// checkExecutable refuses a directory whose mount forbids to map files as code: a
// bind mount of it would forbid it in every container, and the loader would go on
// without the limiter.
func checkExecutable(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look at the mount of %s: %w", dir, err)
	}
	return checkMountFlags(dir, int64(st.Flags))
}

// checkMountFlags is checkExecutable of what statfs says.
func checkMountFlags(dir string, flags int64) error {
	if flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is on a filesystem mounted noexec, and containers have to map the library as code: "+
			"choose another directory (--library-dir), or remount that one with exec", dir)
	}
	return nil
}

// place makes a file of that content and mode exist, by a rename. A file that is
// there already and right is left alone.
func place(path string, data []byte, mode fs.FileMode) error {
	if isPlaced(path, data, mode) {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // gone already once renamed
	if err := errors.Join(fill(tmp, data, mode), tmp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// isPlaced says whether a file is there, whole, and of that mode.
func isPlaced(path string, data []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != mode || info.Size() != int64(len(data)) {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data)
}

// fill writes a file to its end and onto the disk.
func fill(f *os.File, data []byte, mode fs.FileMode) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil { // not open's mode, which the umask cuts
		return err
	}
	return f.Sync()
}

// syncDir makes a rename last over a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
