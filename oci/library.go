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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
)

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
	if err := place(preloadPath, []byte(api.ContainerLibraryPath+"\n"), 0o644); err != nil {
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
