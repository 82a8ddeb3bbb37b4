//go:build root

package limiter_test

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

func openLibrary(t *testing.T) *elf.File {
	t.Helper()
	f, err := elf.Open(filepath.Join(built, "lib", "libvgpu.so"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// Every program of a container has this library in front of it: only what is
// hooked may be visible.
func TestExports(t *testing.T) {
	symbols, err := openLibrary(t).DynamicSymbols()
	require.NoError(t, err)
	names := hookedNames(t)
	allowed := regexp.MustCompile(`^(cu[A-Z]\w*|nvml[A-Z]\w*|dlsym|dlvsym)$`)
	exported := map[string]bool{}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		exported[s.Name] = true
		assert.Regexp(t, allowed, s.Name)
		assert.True(t, names[s.Name] || s.Name == "dlsym" || s.Name == "dlvsym", "%s is exported but not in hooks.def", s.Name)
	}
	for name, hooked := range names {
		assert.Equal(t, hooked, exported[name], "%s: hooked and exported must be the same", name)
	}
}

// The library must load on every glibc from 2.17 on, and ask for nothing else.
func TestNeeds(t *testing.T) {
	f := openLibrary(t)
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	assert.Equal(t, []string{"libc.so.6"}, libraries)
	symbols, err := f.ImportedSymbols()
	require.NoError(t, err)
	for _, s := range symbols {
		version, ok := strings.CutPrefix(s.Version, "GLIBC_")
		require.True(t, ok, "%s has version %q", s.Name, s.Version)
		parts := strings.Split(version, ".")
		minor, err := strconv.Atoi(parts[1])
		require.NoError(t, err, "%s has version %q", s.Name, s.Version)
		assert.True(t, parts[0] == "2" && minor <= 17, "%s needs GLIBC_%s", s.Name, version)
		assert.NotRegexp(t, `^(_?exit|atexit|__cxa_atexit|signal|sigaction|umask|sem_\w+|u?sleep|nanosleep|pthread_atfork|fork|dlsym|dlopen)$`, s.Name)
	}
}

// One function runs when it is loaded (order.c), none when it is unloaded, and it is small.
func TestOneConstructorAndSize(t *testing.T) {
	f := openLibrary(t)
	for _, tag := range []elf.DynTag{elf.DT_INIT, elf.DT_FINI, elf.DT_FINI_ARRAY, elf.DT_PREINIT_ARRAY, elf.DT_TEXTREL} {
		values, err := f.DynValue(tag)
		require.NoError(t, err)
		assert.Empty(t, values, "%v", tag)
	}
	size, err := f.DynValue(elf.DT_INIT_ARRAYSZ)
	require.NoError(t, err)
	assert.Equal(t, []uint64{8}, size)
	for _, s := range f.Sections {
		assert.NotRegexp(t, `^\.(init|fini|ctors|dtors|fini_array|tdata|tbss)$`, s.Name)
		assert.NotEqual(t, elf.SHT_SYMTAB, s.Type, "not stripped")
	}
	for _, p := range f.Progs {
		assert.NotEqual(t, elf.PF_W|elf.PF_X, p.Flags&(elf.PF_W|elf.PF_X), "writable and executable")
	}
	info, err := os.Stat(filepath.Join(built, "lib", "libvgpu.so"))
	require.NoError(t, err)
	t.Logf("%d bytes", info.Size())
	// arm64 has larger code, and aligns data to its largest pages.
	assert.LessOrEqual(t, info.Size(), map[string]int64{"amd64": 200 * kiB, "arm64": 210 * kiB}[runtime.GOARCH])
}

// What each start of a program pays for: two mappings of the file and none besides, and one page that the loader
// writes to, first by clearing the end of it.
func TestLoadingIsCheap(t *testing.T) {
	f := openLibrary(t)
	pages := map[uint64]bool{}
	written := func(from, size uint64) {
		require.NotZero(t, size)
		for page := from / (4 * kiB); page <= (from+size-1)/(4*kiB); page++ {
			pages[page] = true
		}
	}
	mappings := 0
	for _, p := range f.Progs {
		assert.NotEqual(t, elf.PT_GNU_RELRO, p.Type)
		if p.Type == elf.PT_LOAD {
			mappings++
		}
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0 {
			written(p.Vaddr+p.Filesz, p.Memsz-p.Filesz)
		}
	}
	assert.Equal(t, 2, mappings)
	for _, name := range []string{".dynamic", ".got", ".got.plt"} {
		if s := f.Section(name); s != nil {
			written(s.Addr, s.Size)
		}
	}
	relocations, err := f.Section(".rela.dyn").Data()
	require.NoError(t, err)
	const size = 24 // of an Elf64_Rela, which begins with its address
	require.Zero(t, len(relocations)%size)
	for ; len(relocations) > 0; relocations = relocations[size:] {
		written(binary.LittleEndian.Uint64(relocations), 8)
	}
	assert.Len(t, pages, 1)
}

func TestSourcesStaySmall(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "limiter/src/*.[ch]"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Less(t, strings.Count(string(text), "\n"), 500, "%s", file)
	}
}

// Programs that never use CUDA: nothing visible changes.
func TestOtherProgramsAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "hello.c")
	require.NoError(t, os.WriteFile(source, []byte("#include <stdio.h>\nint main(void) { puts(\"hello\"); return 7; }\n"), 0o644))
	require.NoError(t, compile(filepath.Join(dir, "hello"), source))
	// A sanitizer's runtime inside the program looks libc up before it is ready.
	require.NoError(t, compile(filepath.Join(dir, "sanitized"), source, "-fsanitize=address", "-static-libasan"))
	lookup := filepath.Join(dir, "lookup.c")
	require.NoError(t, os.WriteFile(lookup, []byte("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n"+
		"const char interp[] __attribute__((section(\".interp\"), used)) = \""+harness.Loader+"\";\n"+
		"__attribute__((force_align_arg_pointer)) void run(void) { printf(\"%d %d\\n\", dlsym(RTLD_NEXT, \"getpid\") != NULL, dlsym(RTLD_DEFAULT, \"no such\") != NULL); exit(0); }\n"+
		"#ifndef SHARED\nint main(void) { run(); }\n#endif\n"), 0o644))
	require.NoError(t, compile(filepath.Join(dir, "lookup"), lookup))
	require.NoError(t, compile(filepath.Join(dir, "runnable.so"), lookup, "-DSHARED", "-shared", "-fPIC", "-Wl,-e,run"))
	goBinary, err := os.Executable()
	require.NoError(t, err)
	c := oneGPU(t, giB)
	commands := [][]string{
		{filepath.Join(dir, "sanitized")},
		{harness.Loader, filepath.Join(dir, "lookup")},
		{filepath.Join(dir, "runnable.so")}, // has no DT_DEBUG
		{"bash", "-c", "for i in 1 2 3; do (echo $i; exit $i) | cat; done; ls / | wc -l; echo $((6*7)); ulimit -n"},
		{"perl", "-e", "use POSIX; print join(',', map { $_ * 2 } 1..5), \"\\n\"; exit 3"},
		{"busybox", "echo", "hello"},
		{"gcc", "-E", "-P", "-x", "c", "/dev/null"},
		{"gcc", "-O1", "-o", filepath.Join(dir, "hello2"), source},
		{filepath.Join(dir, "hello")},
		{"git", "--version"},
		{goBinary, goWaits},
		{"ldd", "/bin/true"},
		{"su", "daemon", "-s", "/bin/sh", "-c", "id -u"},
	}
	// More of them where the machine has them; the set-up doesn't install these.
	for _, command := range [][]string{
		{"python3", "-c", "import ctypes, threading, ssl, json, subprocess; print(ctypes.CDLL(None).getpid() > 0, threading.active_count(), subprocess.run(['true']).returncode)"},
		{"python3", "-c", "import ctypes; print(hasattr(ctypes.CDLL(None), 'cuInit'), hasattr(ctypes.CDLL(None), 'strlen'))"},
		{"node", "-e", "console.log([1,2,3].map(x => x * 2).join())"},
		{"java", "-version"},
	} {
		if _, err := exec.LookPath(command[0]); err == nil {
			commands = append(commands, command)
		}
	}
	for _, command := range commands {
		t.Run(strings.Join(command[:min(2, len(command))], " "), func(t *testing.T) {
			t.Parallel()
			bare, bareComplaint, bareCode, ok := output(c.bare(), command)
			require.True(t, ok, "it is not on this machine: test/setup.sh installs what the tests need")
			with, complaint, code, _ := output(c, command)
			assert.Equal(t, bare, with)
			assert.Equal(t, bareComplaint, complaint)
			assert.Equal(t, bareCode, code)
		})
	}
	assert.Zero(t, c.used(t))
}

// ldd prints the library itself, and addresses.
var variable = regexp.MustCompile(`(?m)^.*libvgpu\.so.*\n|0x[0-9a-f]{8,}`)

func output(c *container, command []string) (out, complaint string, code int, ok bool) {
	var o, e strings.Builder
	cmd := c.command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); cmd.ProcessState == nil {
		return fmt.Sprint(err), "", 0, false
	}
	return variable.ReplaceAllString(o.String(), ""), variable.ReplaceAllString(e.String(), ""), cmd.ProcessState.ExitCode(), true
}
