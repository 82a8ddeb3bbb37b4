//go:build root

package limiter_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var hookLine = regexp.MustCompile(`(?m)^(HOOK|HELPER)\((CUDA|NVML), (\w+)`)

// hookedNames reads the library's own table.
func hookedNames(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "limiter/src/hooks.def"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, m := range hookLine.FindAllStringSubmatch(string(text), -1) {
		names[m[3]] = m[1] == "HOOK"
	}
	require.NotEmpty(t, names)
	return names
}

// One script by every route, a program that links the driver among them.
func TestSameByEveryRoute(t *testing.T) {
	const script = "init ctx 0 alloc 1073741825 alloc 1073741824 alloc 1 info total 0 free 0 alloc1 512 info1 total1 0 free1 1 managed 5 pitch 5 5 info"
	want := []string{
		"init 0", "ctx 0", "alloc 2", "alloc 0", "alloc 2", "info 0 free 0 total 1073741824", "total 0 1073741824", "free 0",
		"alloc1 0", "info1 0 free 1073741312 total 1073741824", "total1 0 1073741824", "free1 0", "managed 0", "pitch 512  0",
		"info 0 free 1073739259 total 1073741824",
	}
	for _, route := range []string{"dlsym", "default", "next", "libc", "libcv", "proc1", "proc2", "proc3"} {
		t.Run(route, func(t *testing.T) {
			lines, stderr := oneGPU(t, giB).with("PROBE_ROUTE="+route).probe(t, script)
			assert.Equal(t, want, lines)
			assert.Empty(t, stderr)
		})
	}
	t.Run("direct", func(t *testing.T) {
		direct := filepath.Join(t.TempDir(), "direct")
		require.NoError(t, compile(direct, "testdata/probe.c", "-DDIRECT", "-fno-builtin", filepath.Join(built, "sim", "libcuda.so.1")))
		lines, stderr := oneGPU(t, giB).run(t, direct, strings.Fields(script)...)
		assert.Equal(t, want, lines)
		assert.Empty(t, stderr)
	})
	for _, version := range []string{"3020", "12000", "12080"} {
		for _, flags := range []string{"0", "1", "2"} {
			t.Run("proc2 version "+version+" flags "+flags, func(t *testing.T) {
				c := oneGPU(t, giB).with("PROBE_ROUTE=proc2", "PROBE_FLAGS="+flags)
				lines, _ := c.probe(t, script)
				assert.Equal(t, want, lines)
			})
		}
	}
}

// What is metered, what is refused and what goes to the driver.
func TestKindsOfMemory(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kinds")
	require.NoError(t, compile(program, "testdata/kinds.c"))
	c := oneGPU(t, giB)
	c.sim = fakeDriver(t)
	lines, stderr := c.run(t, program)
	assert.Equal(t, []string{
		"alloc 0 1000", "free 0 -1000",
		"1D u8 0 1024", "destroy 0 -1024",
		"2D float4 0 65536", "3D half2 0 8192", "destroy 0 -8192", "layered 0 20480", "destroy 0 -20480", "destroy 0 -65536",
		"sparse 0 0",
		"video 0 3118080", "destroy 0 -3118080",
		"video 0 6236160", "destroy 0 -6236160",
		"video 0 4147200", "destroy 0 -4147200",
		"video 0 8294400", "destroy 0 -8294400",
		"video 0 6220800", "destroy 0 -6220800",
		"video 0 12441600", "destroy 0 -12441600",
		"video 0 4147200", "destroy 0 -4147200",
		"video 0 8294400", "destroy 0 -8294400",
		"video 0 16588800", "destroy 0 -16588800",
		"mipmapped 0 21504", "destroy 0 -21504",
		"too large 2 0", "overflow 2 0", "no descriptor 1 0",
		"async 0 33554432", "async_ptsz 0 0", "unknown pool 801 0", "unknown pool_ptsz 801 0",
		"managed pool 801 0", "pool nowhere 801 0",
		"create on device 0 1", "import what has no size 801 0", "release 0 -1", "release again 0 0", "release what is unknown 0 0",
		"create 0 1", "release 0 0", "unmapped meanwhile 0 0", "retain 0 0", "release 0 -1",
		"create 0 1", "release 0 0", "unmapped meanwhile 0 0", "retain 0 -1", "release 0 0",
		"create on host 0 0", "create anywhere 801 0",
		"pools 1", "vmm 1", "others 1",
		"unknown variant 500 1 0", "unknown name 0 0 1",
	}, lines)
	assert.Equal(t, 5, strings.Count(stderr, "\n"), stderr)
	assert.Contains(t, stderr, "the size of the imported memory can't be found out")
	assert.Contains(t, stderr, "a memory pool that this limiter does not know")
	assert.Contains(t, stderr, "a memory pool of managed memory")
	assert.Contains(t, stderr, "cuMemAlloc: the driver has a variant")
	assert.Zero(t, c.used(t))
}

// Our dlsym and dlvsym must not change the caller.
func TestCallerIsKept(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"libfirst.so", "libsecond.so"} {
		require.NoError(t, compile(filepath.Join(dir, name), "testdata/caller.c", "-shared", "-fPIC", "-DOBJECT="+[]string{"2", "3"}[i]))
	}
	program := filepath.Join(dir, "caller")
	require.NoError(t, compile(program, "testdata/caller.c", "-DOBJECT=1", "-rdynamic", "-L"+dir, "-Wl,--no-as-needed", "-lfirst",
		"-lsecond", "-Wl,-rpath,"+dir))
	c := oneGPU(t, giB)
	bare, _ := c.bare().run(t, program)
	with, stderr := c.run(t, program)
	assert.Equal(t, bare, with)
	assert.Equal(t, "2 3 0", bare[0])
	assert.Empty(t, stderr)
}
