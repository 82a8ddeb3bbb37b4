//go:build root

package limiter_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/limiter"
)

// Programs that were built with a sanitizer, whether they use CUDA or not, however the limiter
// comes to them, and whether the sanitizer's runtime is a library or in the program.
func TestProgramsWithSanitizers(t *testing.T) {
	dir := t.TempDir()
	plain := oneGPU(t, giB).inPages(t).with("ASAN_OPTIONS=verify_asan_link_order=1:detect_leaks=0")
	plain.library = preloaded(t, plain.library)
	front := inFront(t, plain)
	both := front.both()
	both.library = preloaded(t, both.library)
	empty := filepath.Join(dir, "empty.c")
	require.NoError(t, os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o644))
	want, _ := oneGPU(t, giB).inPages(t).probe(t, frontScript)
	for _, test := range []struct {
		sanitizer string
		flags     []string
	}{
		{"address", nil},
		{"address", []string{"-static-libasan"}},
		{"thread", nil},
		{"thread", []string{"-static-libtsan"}},
		{"undefined", nil},
		{"undefined", []string{"-static-libubsan"}},
		{"leak", nil}, // with a static runtime no program starts, with gcc 12
	} {
		t.Run(strings.Join(append([]string{test.sanitizer}, test.flags...), " "), func(t *testing.T) {
			idle, dynamic, direct := filepath.Join(t.TempDir(), "idle"), filepath.Join(t.TempDir(), "probe"), filepath.Join(t.TempDir(), "direct")
			flags := append([]string{"-pthread", "-fsanitize=" + test.sanitizer}, test.flags...)
			require.NoError(t, compile(idle, empty, flags...))
			require.NoError(t, compile(dynamic, "testdata/probe.c", flags...))
			require.NoError(t, compile(direct, "testdata/probe.c", append(flags, "-DDIRECT", "-fno-builtin", filepath.Join(built, "sim", "libcuda.so.1"))...))
			for name, c := range map[string]*container{"preload": plain, "library": front, "preload+library": both} {
				lines, stderr := c.run(t, idle)
				assert.Equal(t, []string{""}, lines, name)
				assert.Empty(t, stderr, name)
				for _, program := range []string{dynamic, direct} {
					lines, stderr := c.run(t, program, strings.Fields(frontScript)...)
					assert.Equal(t, want, lines, name)
					assert.Empty(t, stderr, name)
				}
			}
		})
	}
}

// preloaded is the library under the name by which containers preload it.
func preloaded(t *testing.T, library string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), filepath.Base(api.ContainerPreloadedPath))
	require.NoError(t, os.Symlink(library, link))
	return link
}

// The library under the sanitizers, with a program of eight threads that allocate
// and free, and the scripts that go through its corners.
func TestSanitizers(t *testing.T) {
	for _, test := range []struct{ sanitizer, quiet string }{
		{"address,undefined", "ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=99"},
		{"thread", "TSAN_OPTIONS=exitcode=99"},
	} {
		t.Run(test.sanitizer, func(t *testing.T) {
			require.NoError(t, buildNative(test.sanitizer))
			dir := t.TempDir()
			lib := filepath.Join(built, test.sanitizer, "lib", "libvgpu.so")
			for _, program := range []string{"churn", "probe", "primary", "segments"} {
				// Linked first rather than preloaded: the sanitizer's runtime must be in front.
				require.NoError(t, compile(filepath.Join(dir, program), "testdata/"+program+".c", "-pthread",
					"-fsanitize="+test.sanitizer, "-Wl,--no-as-needed", lib, "-Xlinker", "-rpath", "-Xlinker", filepath.Dir(lib)))
			}
			require.NoError(t, compile(filepath.Join(dir, "pace"), "testdata/pace.c", "-pthread", "-fsanitize="+test.sanitizer,
				"-Wl,--no-as-needed", lib, filepath.Join(built, test.sanitizer, "sim", "libcuda.so.1"), "-Xlinker", "-rpath", "-Xlinker", filepath.Dir(lib)))
			for _, how := range []string{"sync", "async", "event"} {
				c := sharing(t, newMachine(t, "H200"), "7", 30, limiter.PolicyForce).with(test.quiet)
				c.library, c.sim = "", filepath.Join(built, test.sanitizer, "sim")
				out, err := c.command(filepath.Join(dir, "pace"), "0.5", how, "5,50,500,20000", "8").CombinedOutput()
				assert.NoError(t, err, "%s", out)
				assert.NotContains(t, string(out), "anitizer")
				assert.NotZero(t, c.cores(t).ThrottledNanoseconds)
			}
			const context = 30 * miB
			c := newContainerKnowing(t, newMachine(t, "H200:context_mib=30"+unpaged), context, gpu{gpuIDs[0], giB}).with(test.quiet)
			c.library = ""
			c.sim = filepath.Join(built, test.sanitizer, "sim")
			out, err := c.command(filepath.Join(dir, "churn"), "2", "1", fmt.Sprint(300*miB), "8").CombinedOutput()
			assert.NoError(t, err, "%s", out)
			assert.NotContains(t, string(out), "anitizer")
			paged := newContainer(t, newMachine(t, "H200:context_mib=0"), gpu{gpuIDs[0], 64 * miB}).inPages(t).with(test.quiet)
			paged.library, paged.sim = c.library, c.sim
			out, err = paged.command(filepath.Join(dir, "churn"), "2", "1", fmt.Sprint(3*miB), "8").CombinedOutput()
			assert.NoError(t, err, "%s", out)
			assert.NotContains(t, string(out), "anitizer")
			alone := newContainerKnowing(t, newMachine(t, "H200:context_mib=40"), context, gpu{gpuIDs[0], giB}).inPages(t).unmeasured(t).with(test.quiet)
			alone.library, alone.sim = c.library, c.sim
			out, err = alone.command(filepath.Join(dir, "churn"), "4", "1", fmt.Sprint(30*miB), "2").CombinedOutput()
			assert.NoError(t, err, "%s", out)
			assert.NotContains(t, string(out), "anitizer")
			out, err = c.command(filepath.Join(dir, "segments"), "2", "1", "6").CombinedOutput()
			assert.NoError(t, err, "%s", out)
			assert.NotContains(t, string(out), "anitizer")
			for _, script := range []string{
				"init ctx 0 vreserve 9000 vcreate 0 4 vmap 0 0 4 0 vretain 0 2 vrelease 0 vunmap 0 0 4 vunmap 0 0 4 vrelease 1 vmany 300 2 vunmap 0 0 600",
				"init ctx 0 alloc 4096 alloc1 512 managed 100 pitch 100 10 info info1 infonull total 0 free 0 free1 1 free 2 nvml 0 reset 0",
				"init ctx 0 vreserve 64 vcreate 0 4 vexport 0 vexport 0 vimport 0 vimport 1 vmap 0 0 4 1 vrelease 0 vrelease 1 vclose 0 vunmap 0 0 4 vrelease 2",
				"vborn 4 vborn 4 init ctx 0 vreserve 64 vimport 0 vdrop 0 vexport 0 vmap 0 0 4 0 vrelease 0 vimport 1 vclose 2 info vunmap 0 0 4 vrelease 1 vclose 1 info",
				"init newctx 0 alloc 1042284544 alloc 1 newctx newctx 0 alloc 1042284544 ctx 0 closefds",
				"alloc 1 init alloc 1 freeptr 1",
				"init ctx 0 alloc 1042284544 alloc 1 fillfds alloc 1 info free 0 alloc 1",
				"init ctx 0 alloc 1 exec true",
			} {
				out, err := c.command(filepath.Join(dir, "probe"), strings.Fields(script)...).CombinedOutput()
				assert.NoError(t, err, "%s", out)
				assert.NotContains(t, string(out), "anitizer")
				assert.NotContains(t, string(out), "runtime error")
			}
			one := newContainerKnowing(t, newMachine(t, "H200:context_mib=30"), context, gpu{gpuIDs[0], context}).with(test.quiet)
			one.library, one.sim = "", c.sim
			racePrimary(t, one, filepath.Join(dir, "primary"), 1, "1", "8", "reset")
			peak, _ := c.peakTotal(t)
			assert.LessOrEqual(t, peak, uint64(giB))
		})
	}
}

// A GPU that a process sees but is not granted has no cell: memory of it is not opened, and nothing is read in place of its record.
func TestIPCMemoryOfAGPUThatIsNotGranted(t *testing.T) {
	const sanitizer = "address,undefined"
	require.NoError(t, buildNative(sanitizer))
	lib, program := filepath.Join(built, sanitizer, "lib", "libvgpu.so"), filepath.Join(t.TempDir(), "handler")
	require.NoError(t, compile(program, "testdata/handler.c", "-fsanitize="+sanitizer,
		"-Wl,--no-as-needed", lib, "-Xlinker", "-rpath", "-Xlinker", filepath.Dir(lib)))
	c := oneGPU(t, giB).with("ASAN_OPTIONS=detect_leaks=0:exitcode=99")
	c.library, c.sim = "", fakeDriver(t, "-DIPC_DEVICE=1")
	out, err := c.command(program, "0", "ipc").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "of it\n3\n")
	require.NotContains(t, string(out), "anitizer")
	require.NotContains(t, string(out), "runtime error")
}
