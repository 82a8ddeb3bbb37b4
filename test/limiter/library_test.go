//go:build root

package limiter_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// behindFronts are the names of the driver's libraries in the limiter's directory.
var behindFronts = map[string]string{"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}

// inFront makes a container with the limiter in front of the driver's libraries in place of a preload: the
// fronts are at the driver's path.
func inFront(tb testing.TB, c *container) *container {
	tb.Helper()
	dir := tb.TempDir()
	require.NoError(tb, os.Mkdir(filepath.Join(dir, "driver"), 0o755))
	require.NoError(tb, os.Symlink(filepath.Join(built, "lib", "libvgpu.so"), filepath.Join(dir, "libvgpu.so")))
	out, err := exec.Command("make", "-s", "-C", filepath.Join(root, "limiter/front"), "OUT="+dir, "DIR="+dir).CombinedOutput()
	require.NoError(tb, err, "%s", out)
	f := *c
	f.library, f.front = "", filepath.Join(dir, "lib")
	for name, driver := range behindFronts {
		require.NoError(tb, os.Rename(filepath.Join(f.front, "libvgpu-"+name+".so"), filepath.Join(f.front, driver)))
		require.NoError(tb, os.Symlink(filepath.Join(c.sim, driver), filepath.Join(dir, "driver", name)))
	}
	return &f
}

// both is a container in which the limiter is in front and preloaded.
func (c *container) both() *container {
	b := *c
	b.library = filepath.Join(filepath.Dir(c.front), "libvgpu.so")
	return &b
}

// Without any preload: every hooked name by every route. (dlvsym finds no name of a
// driver without symbol versions, and NVIDIA's has none.)
func TestEveryHookByEveryRouteInFront(t *testing.T) {
	dir := t.TempDir()
	program, direct := filepath.Join(dir, "routes"), filepath.Join(dir, "direct")
	require.NoError(t, compile(program, "testdata/routes.c"))
	c := oneGPU(t, giB)
	c.sim = plainDriver(t, "-DPROC_TABLE", "testdata/fake_proc.c")
	onDriver := filepath.Join(dir, "direct-driver")
	require.NoError(t, compile(onDriver, "testdata/direct.c", "-Wl,--no-as-needed", filepath.Join(c.sim, "libcuda.so.1"), filepath.Join(c.sim, "libnvidia-ml.so.1")))
	c = inFront(t, c)
	// As a program is built inside the container: with the fronts.
	require.NoError(t, compile(direct, "testdata/direct.c", filepath.Join(c.front, "libcuda.so.1"), filepath.Join(c.front, "libnvidia-ml.so.1")))
	found := map[string]map[string]bool{}
	merge := func(routes map[string]map[string]bool) {
		for route, names := range routes {
			if found[route] == nil {
				found[route] = map[string]bool{}
			}
			for name := range names {
				found[route][name] = true
			}
		}
	}
	merge(compareRoutes(t, c, direct))
	merge(compareRoutes(t, c, onDriver))
	for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		merge(compareRoutes(t, c.with("ROUTES_LIBRARY="+library, "ROUTES_VERSION=FAKE_1"), program, routeNames(t)...))
	}
	for _, route := range []string{"direct", "handle", "default", "next", "self", "proc1", "proc2"} {
		for name, hooked := range hookedNames(t) {
			if hooked && !(strings.HasPrefix(route, "proc") && strings.HasPrefix(name, "nvml")) {
				assert.True(t, found[route][name], "%s was not found by %s", name, route)
			}
		}
	}
}

// frontScript fills a GPU of 1 GiB to the byte and looks at it.
const frontScript = "init ctx 0 alloc 1073741823 alloc 2 alloc 1 info total 0 nvml 0 free 0 free 1 info alloc 1073741824 alloc 1 free 2"

// The limit holds in front of the driver, also together with a preload, and what is
// shown is the slice.
func TestLimitInFront(t *testing.T) {
	plain := oneGPU(t, giB).inPages(t)
	front := inFront(t, plain)
	for name, c := range map[string]*container{"in front": front, "in front and preloaded": front.both()} {
		t.Run(name, func(t *testing.T) {
			want, _ := plain.probe(t, frontScript)
			got, stderr := c.probe(t, frontScript)
			assert.Empty(t, stderr)
			assert.Equal(t, want, got)
			peak, now := c.peak(t)
			assert.Equal(t, uint64(giB), peak)
			assert.Zero(t, now)
			assert.Zero(t, c.used(t))
		})
	}
}

// A scope of its own (RTLD_DEEPBIND) is passed by a preload, and not by the front.
func TestFrontIsNotPassedByDeepBinding(t *testing.T) {
	dir := t.TempDir()
	source, plugin, program := filepath.Join(dir, "plugin.c"), filepath.Join(dir, "plugin.so"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(source, []byte(`
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#ifdef PLUGIN
extern int cuMemAlloc_v2(void);
void *where(void) { return (void *)cuMemAlloc_v2; }
#else
int main(int argc, char **argv)
{
	Dl_info info;
	void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	void *(*where)(void) = plugin ? (void *(*)(void))dlsym(plugin, "where") : NULL;
	if (!where || !dladdr(where(), &info))
		return fputs(dlerror(), stderr), 1;
	puts(strrchr(info.dli_fname, '/') + 1);
	return 0;
}
#endif
`), 0o644))
	c := inFront(t, oneGPU(t, giB))
	// A plugin that is built where the front is, as run-time compilers of kernels do it:
	// the linker must find the name in the front, or would drop it.
	require.NoError(t, compile(plugin, source, "-DPLUGIN", "-shared", "-fPIC", "-Wl,--as-needed", "-L"+c.front, "-l:libcuda.so.1"))
	require.NoError(t, compile(program, source))
	lines, stderr := c.run(t, program, plugin)
	assert.Equal(t, []string{"libvgpu.so"}, lines, stderr)
}

// The driver in a namespace of its own (dlmopen) has a limiter of its own. All limiters of a container have
// one limit.
func TestNamespacesInFront(t *testing.T) {
	dir := t.TempDir()
	program, plugin := filepath.Join(dir, "namespaces"), filepath.Join(dir, "plugin.so")
	front := inFront(t, oneGPU(t, giB))
	require.NoError(t, compile(program, "testdata/namespaces.c"))
	require.NoError(t, compile(plugin, "testdata/namespaces.c", "-DPLUGIN", "-shared", "-fPIC", "-L"+front.front, "-l:libcuda.so.1"))
	for name, c := range map[string]*container{"in front": front, "in front and preloaded": front.both()} {
		for how, env := range map[string]string{"lazily": "LD_BIND_NOW=", "at once": "LD_BIND_NOW=1"} {
			t.Run(name+", bound "+how, func(t *testing.T) {
				for _, spaces := range [][3]string{{"own", "new", plugin}, {"new", "own", "new"}, {plugin, "new", "own"}, {"new", plugin, plugin}} {
					lines, stderr := c.with(env).run(t, program, spaces[:]...)
					assert.Empty(t, stderr)
					var want []string
					for i, result := range []int{0, 0, 2} { // 3 × 400 MiB
						want = append(want, fmt.Sprintf("%s 0 %d %d", strings.TrimSuffix(filepath.Base(spaces[i]), ".so"), giB, result))
					}
					assert.Equal(t, want, lines)
				}
			})
		}
	}
}

// A fully static program can load the driver all the same. A preload never reaches it;
// in front it gets no GPU: the loader that it brings its own of has no place where the
// limiter finds what it needs.
func TestStaticProgramsGetNoGPUInFront(t *testing.T) {
	dir := t.TempDir()
	source, program := filepath.Join(dir, "static.c"), filepath.Join(dir, "static")
	require.NoError(t, os.WriteFile(source, []byte(`
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
	void *handle = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = handle ? (int (*)(unsigned))dlsym(handle, "cuInit") : NULL;
	printf("%d\n", init ? init(0) : -1);
	return 0;
}
`), 0o644))
	require.NoError(t, compile(program, source, "-static"))
	plain := oneGPU(t, giB)
	lines, _ := plain.run(t, program)
	assert.Equal(t, []string{"0"}, lines, "it is not limited by a preload; if it is now: change docs/LIMITER.md")
	lines, stderr := inFront(t, plain).run(t, program)
	assert.Equal(t, []string{"100"}, lines, "CUDA_ERROR_NO_DEVICE: %s", stderr)
}

// What a front is: the driver's soname, the limiter and the driver behind it, in this
// order, and names that linkers see and loaders don't.
func TestFront(t *testing.T) {
	require.NoError(t, os.MkdirAll(built, 0o755))
	for _, one := range []struct{ file, driver, hidden, names string }{
		{"libvgpu-cuda.so", "libcuda.so.1", "cuda", "libcuda.txt"},
		{"libvgpu-nvml.so", "libnvidia-ml.so.1", "nvml", "libnvidia-ml.txt"},
	} {
		t.Run(one.file, func(t *testing.T) {
			path := filepath.Join(built, "lib", one.file)
			f, err := elf.Open(path)
			require.NoError(t, err)
			defer f.Close()
			soname, err := f.DynString(elf.DT_SONAME)
			require.NoError(t, err)
			assert.Equal(t, []string{one.driver}, soname)
			needed, err := f.ImportedLibraries()
			require.NoError(t, err)
			assert.Equal(t, []string{"/.gpuslice/libvgpu.so", "/.gpuslice/driver/" + one.hidden}, needed)

			symbols, err := f.DynamicSymbols()
			require.NoError(t, err)
			have := map[string]bool{}
			for _, s := range symbols {
				assert.NotEqual(t, elf.SHN_UNDEF, s.Section, "it asks for %s", s.Name)
				have[s.Name] = true
			}
			prefix := regexp.MustCompile(map[bool]string{true: "^cu", false: "^nvml"}[one.driver == "libcuda.so.1"])
			names := exportedNames(t)
			for name := range hookedNames(t) {
				names[name] = "hooks.def"
			}
			for name, list := range names {
				if prefix.MatchString(name) {
					assert.True(t, have[name], "%s of %s is not in limiter/front/%s", name, list, one.names)
				}
			}
			hash, err := f.Section(".gnu.hash").Data()
			require.NoError(t, err)
			assert.Empty(t, strings.Trim(string(hash[16:]), "\x00"), "a loader would find the front's own symbols")
			for _, tag := range []elf.DynTag{elf.DT_INIT, elf.DT_FINI, elf.DT_INIT_ARRAY, elf.DT_FINI_ARRAY, elf.DT_HASH, elf.DT_RELA, elf.DT_TEXTREL} {
				values, err := f.DynValue(tag)
				require.NoError(t, err)
				assert.Empty(t, values, "%v", tag)
			}
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.LessOrEqual(t, info.Size(), int64(64*kiB))
		})
	}
}
