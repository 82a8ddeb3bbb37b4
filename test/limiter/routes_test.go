//go:build root

package limiter_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeDriver builds a driver that has every hooked function, with symbol versions.
func fakeDriver(tb testing.TB, flags ...string) string {
	tb.Helper()
	script := filepath.Join(tb.TempDir(), "map")
	require.NoError(tb, os.WriteFile(script, []byte("FAKE_1 { global: *; };\n"), 0o644))
	return plainDriver(tb, append(flags, "-Wl,--version-script,"+script)...)
}

// plainDriver builds one without symbol versions, as NVIDIA's is.
func plainDriver(tb testing.TB, flags ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		require.NoError(tb, compile(filepath.Join(dir, name), "testdata/fake_all.c", append([]string{"testdata/fake_some.c", "-shared", "-fPIC",
			"-Wl,-Bsymbolic", "-Wl,-soname," + name}, flags...)...))
	}
	return dir
}

// tableDriver has a cuGetProcAddress that finds every hooked name, too.
func tableDriver(tb testing.TB) string {
	tb.Helper()
	return fakeDriver(tb, "-DPROC_TABLE", "testdata/fake_proc.c")
}

var suffix = regexp.MustCompile(`(_v[2-9])?(_ptsz|_ptds)?$`)

// routeNames are the names that are looked up: those of the simulated driver, those
// that are hooked, both also as cuGetProcAddress knows them, and some that are neither.
func routeNames(t *testing.T) []string {
	t.Helper()
	all := append(simSymbols(t), "cuNoSuchThing", "cublasCreate_v2", "curl_easy_init", "nvmlNoSuchThing", "cu", "nvml", "strlen",
		"cuMemAllocAsync", "cuMemcpy", "cuGraphAddNode")
	for name := range hookedNames(t) {
		all = append(all, name)
	}
	for _, name := range slices.Clone(all) {
		all = append(all, suffix.ReplaceAllString(name, ""))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// compareRoutes runs a program that looks names up, without the library and with it.
// What is hooked, and only that, must come from the library, and be the wrapper of the
// very variant that the driver gives. It returns how often each hooked name was so.
func compareRoutes(t *testing.T, c *container, program string, args ...string) map[string]map[string]bool {
	t.Helper()
	names := hookedNames(t)
	bare, _ := c.bare().run(t, program, args...)
	with, stderr := c.run(t, program, args...)
	assert.Empty(t, stderr)
	require.Equal(t, len(bare), len(with))
	swapped := map[string]map[string]bool{}
	for i := range bare {
		b, w := strings.Fields(bare[i]), strings.Fields(with[i])
		require.Len(t, b, 4)
		if soname, behind := behindFronts[w[2]]; behind && c.front != "" {
			w[2] = soname
		}
		if strings.HasPrefix(b[2], "lib") && names[b[3]] && b[2] != "libvgpu.so" {
			b[2] = "libvgpu.so"
			route, _, _ := strings.Cut(b[1], ":")
			if swapped[route] == nil {
				swapped[route] = map[string]bool{}
			}
			swapped[route][b[3]] = true
		}
		require.Equal(t, strings.Join(b, " "), strings.Join(w, " "))
	}
	t.Logf("%d look-ups", len(bare))
	assert.NotEmpty(t, swapped)
	return swapped
}

// Every hooked name by every route there is, on a driver that has them all.
func TestEveryHookByEveryRoute(t *testing.T) {
	program, direct := filepath.Join(t.TempDir(), "routes"), filepath.Join(t.TempDir(), "direct")
	require.NoError(t, compile(program, "testdata/routes.c"))
	c := oneGPU(t, giB)
	c.sim = tableDriver(t)
	require.NoError(t, compile(direct, "testdata/direct.c", "-Wl,--no-as-needed", filepath.Join(c.sim, "libcuda.so.1"),
		filepath.Join(c.sim, "libnvidia-ml.so.1")))
	found := compareRoutes(t, c, direct)
	for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		routes := compareRoutes(t, c.with("ROUTES_LIBRARY="+library, "ROUTES_VERSION=FAKE_1"), program, routeNames(t)...)
		for route, names := range routes {
			if found[route] == nil {
				found[route] = map[string]bool{}
			}
			for name := range names {
				found[route][name] = true
			}
		}
	}
	for _, route := range []string{"direct", "handle", "default", "next", "self", "dlvsym", "proc1", "proc2"} {
		for name, hooked := range hookedNames(t) {
			if hooked && !(strings.HasPrefix(route, "proc") && strings.HasPrefix(name, "nvml")) {
				assert.True(t, found[route][name], "%s was not found by %s", name, route)
			}
		}
	}
}

// The same on the simulated driver as of several releases: what a release has not
// got yet stays so.
func TestEveryNameByEveryRoute(t *testing.T) {
	program := filepath.Join(t.TempDir(), "routes")
	require.NoError(t, compile(program, "testdata/routes.c"))
	c := oneGPU(t, giB)
	names := routeNames(t)
	before := -1
	for _, release := range [][2]string{{"450.51", "11.0"}, {"470.82.01", "11.4"}, {"535.261.03", "12.2"}, {"570.172.08", "12.8"}, {"580.65.06", "13.0"}} {
		t.Run("CUDA "+release[1], func(t *testing.T) {
			out, err := exec.Command(filepath.Join(built, "sim", "simctl"), "--state", c.state, "set", "driver",
				"version="+release[0], "cuda="+release[1]).CombinedOutput()
			require.NoError(t, err, "%s", out)
			found := compareRoutes(t, c.with("ROUTES_LIBRARY=libcuda.so.1", "ROUTES_VERSION=FAKE_1"), program, names...)
			assert.GreaterOrEqual(t, len(found["proc2"]), before, "a later release has no less")
			before = len(found["proc2"])
		})
	}
	t.Run("NVML", func(t *testing.T) {
		compareRoutes(t, c.with("ROUTES_LIBRARY=libnvidia-ml.so.1", "ROUTES_VERSION=FAKE_1"), program, names...)
	})
}
