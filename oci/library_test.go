package oci

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
)

// elfFile makes a minimal ELF file.
func elfFile(t testing.TB, kind elf.Type, machine elf.Machine, symbols bool, extra string) []byte {
	t.Helper()
	names := "\x00.shstrtab\x00.dynsym\x00"
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(kind), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Ehsize: 64, Shentsize: 64, Shnum: 2, Shstrndx: 1,
	}
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_STRTAB), Off: 64, Size: uint64(len(names)), Addralign: 1},
	}
	if symbols {
		sections = append(sections, elf.Section64{Name: 11, Type: uint32(elf.SHT_DYNSYM), Off: 64, Size: 0, Entsize: 24, Link: 1})
		header.Shnum = 3
	}
	header.Shoff = uint64(64 + len(names))
	var b bytes.Buffer
	require.NoError(t, binary.Write(&b, binary.LittleEndian, header))
	b.WriteString(names)
	require.NoError(t, binary.Write(&b, binary.LittleEndian, sections))
	b.WriteString(extra)
	return b.Bytes()
}

// library writes a good library of a content.
func library(t testing.TB, content string) string {
	path := filepath.Join(t.TempDir(), "libvgpu.so")
	require.NoError(t, os.WriteFile(path, elfFile(t, elf.ET_DYN, elfMachines[runtime.GOARCH], true, content), 0o600))
	return path
}

func TestInstallLibrary(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	dir := filepath.Join(t.TempDir(), "a", "lib")
	src := library(t, "one")

	lib, preload, err := InstallLibrary(src, dir)
	require.NoError(t, err)
	assert.Regexp(t, `^libvgpu-[0-9a-f]{16}\.so$`, filepath.Base(lib))
	assert.Equal(t, filepath.Join(dir, "ld.so.preload"), preload)
	sameFile(t, src, lib)
	text, err := os.ReadFile(preload)
	require.NoError(t, err)
	assert.Equal(t, api.ContainerPreloadedPath+"\n", string(text))
	for path, mode := range map[string]os.FileMode{lib: 0o755, preload: 0o644} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode(), "%s, whatever the umask", path)
	}

	before := inode(t, lib)
	long := time.Now().Add(-2 * LibraryGrace)
	require.NoError(t, os.Chtimes(lib, long, long))
	again, _, err := InstallLibrary(src, dir)
	require.NoError(t, err)
	assert.Equal(t, lib, again)
	info, err := os.Stat(lib)
	require.NoError(t, err)
	assert.True(t, info.ModTime().After(long), "LibraryGrace starts again")
	assert.Equal(t, before, inode(t, lib), "a correct file is not changed")

	other, _, err := InstallLibrary(library(t, "two"), dir)
	require.NoError(t, err)
	assert.NotEqual(t, lib, other)
	assert.Equal(t, before, inode(t, lib), "an old version stays for its containers")
	assert.Equal(t, 3, countFiles(t, dir), "and no other file")
}

// The list of libraries has no version in its name. So its line is every version's: a container, or a slice of an earlier
// version, has its library at that path. And a container keeps the list that it has mounted.
func TestInstallLibraryKeepsTheListOfContainers(t *testing.T) {
	dir := t.TempDir()
	_, preload, err := InstallLibrary(library(t, "one"), dir)
	require.NoError(t, err)
	text, err := os.ReadFile(preload)
	require.NoError(t, err)
	assert.Equal(t, "/.gpuslice/libvgpu-before-libasan.so\n", string(text), "with another line, the list's name needs a version")

	require.NoError(t, os.WriteFile(preload, []byte("/another\n"), 0o644))
	mounted, err := os.Open(preload)
	require.NoError(t, err)
	defer mounted.Close()
	_, _, err = InstallLibrary(library(t, "two"), dir)
	require.NoError(t, err)
	kept, err := io.ReadAll(mounted)
	require.NoError(t, err)
	assert.Equal(t, "/another\n", string(kept))
	after, err := os.ReadFile(preload)
	require.NoError(t, err)
	assert.Equal(t, text, after)
}

// A file that was changed in place is replaced, not written to: containers map it.
func TestInstallLibraryReplacesWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	src := library(t, "one")
	lib, preload, err := InstallLibrary(src, dir)
	require.NoError(t, err)
	before := inode(t, lib)
	require.NoError(t, os.WriteFile(lib, []byte("overwritten"), 0o755))
	require.NoError(t, os.Remove(preload))
	require.NoError(t, os.Symlink("/etc/passwd", preload))

	_, _, err = InstallLibrary(src, dir)
	require.NoError(t, err)
	sameFile(t, src, lib)
	assert.NotEqual(t, before, inode(t, lib))
	info, err := os.Lstat(preload)
	require.NoError(t, err)
	assert.True(t, info.Mode().IsRegular(), "a link is not followed")
}

func TestInstallLibraryAtOnce(t *testing.T) {
	dir := t.TempDir()
	srcs := []string{library(t, "one"), library(t, "two")}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			lib, _, err := InstallLibrary(srcs[i%2], dir)
			if assert.NoError(t, err) {
				sameFile(t, srcs[i%2], lib)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 3, countFiles(t, dir))
}

func TestInstallLibraryRefuses(t *testing.T) {
	other := elf.EM_X86_64
	if elfMachines[runtime.GOARCH] == other {
		other = elf.EM_AARCH64
	}
	here := elfMachines[runtime.GOARCH]
	tests := []struct {
		description string
		content     []byte
		texts       []string
	}{
		{"a script", []byte("#!/bin/sh\n"), []string{"not an ELF file"}},
		{"an empty file", nil, []string{"not an ELF file"}},
		{"a program", elfFile(t, elf.ET_EXEC, here, true, ""), []string{"not a shared object"}},
		{"another machine's", elfFile(t, elf.ET_DYN, other, true, ""), []string{other.String(), runtime.GOARCH}},
		{"no symbols", elfFile(t, elf.ET_DYN, here, false, ""), []string{"exports no symbols"}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			src, dir := filepath.Join(t.TempDir(), "lib.so"), t.TempDir()
			require.NoError(t, os.WriteFile(src, tt.content, 0o755))
			_, _, err := InstallLibrary(src, dir)
			require.ErrorContains(t, err, src)
			for _, text := range tt.texts {
				assert.ErrorContains(t, err, text)
			}
			assert.Zero(t, countFiles(t, dir))
		})
	}
	t.Run("not there", func(t *testing.T) {
		_, _, err := InstallLibrary("/none/such.so", t.TempDir())
		require.ErrorIs(t, err, os.ErrNotExist)
		assert.ErrorContains(t, err, "make build")
	})
	t.Run("a file for a directory", func(t *testing.T) {
		src := library(t, "one")
		_, _, err := InstallLibrary(src, src)
		assert.ErrorContains(t, err, "mkdir")
	})
}

func TestInstallLibraryRefusesNoexec(t *testing.T) {
	require.NoError(t, checkMountFlags("/x", unix.ST_NOSUID|unix.ST_NODEV))
	err := checkMountFlags("/x", unix.ST_NOEXEC|unix.ST_NOSUID)
	require.ErrorContains(t, err, "/x is on a filesystem mounted noexec")
	assert.ErrorContains(t, err, "--library-dir")

	for _, dir := range []string{"/proc", "/sys", "/run", "/dev/shm"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && int64(st.Flags)&unix.ST_NOEXEC != 0 {
			assert.ErrorContains(t, checkExecutable(dir), "noexec", "the real mount of %s", dir)
			return
		}
	}
	t.Log("no noexec mount on this machine to try")
}

func sameFile(t testing.TB, want, have string) {
	t.Helper()
	a, errA := os.ReadFile(want)
	b, errB := os.ReadFile(have)
	assert.NoError(t, errA)
	assert.NoError(t, errB)
	assert.True(t, bytes.Equal(a, b), "%s is %s", have, want)
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Ino
}

func countFiles(t testing.TB, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(entries)
}

// Of /proc/devices no number is the driver's that isn't in it, and the GPUs' own is never another's.
func FuzzDriverMajors(f *testing.F) {
	f.Add("Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps\n234 nvidia-uvm\n\nBlock devices:\n259 nvidia\n")
	f.Add("235 nvidia-caps-imex-channels\n-1 nvidia-x\n99999999999999999999 nvidia-uvm\n")
	f.Fuzz(func(t *testing.T, text string) {
		m := driverMajors(text)
		all := slices.Concat(m.Caps, m.Other)
		require.NotContains(t, all, int64(nvidiaMajor))
		require.LessOrEqual(t, len(all), strings.Count(text, "nvidia"))
	})
}
