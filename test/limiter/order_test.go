//go:build root

package limiter_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A driver's library that is loaded before the limiter would answer the program's calls
// without a limit. The process ends, whatever name the library has.
func TestDriverBeforeTheLimiterEndsTheProcess(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "direct")
	require.NoError(t, compile(program, "testdata/probe.c", "-DDIRECT", "-fno-builtin", filepath.Join(built, "sim", "libcuda.so.1")))
	plain := oneGPU(t, giB)
	front := inFront(t, plain)
	linked := filepath.Join(dir, "harmless.so")
	require.NoError(t, os.Symlink(filepath.Join(plain.sim, "libcuda.so.1"), linked))
	const script = "init ctx 0 alloc 1073741825"
	for _, test := range []struct {
		description string
		c           *container
		before      string
	}{
		{"the driver's library", plain, filepath.Join(plain.sim, "libcuda.so.1")},
		{"a link to it", plain, linked},
		{"its path through /proc", plain, "/proc/self/root" + linked},
		{"NVML", plain, filepath.Join(plain.sim, "libnvidia-ml.so.1")},
		{"behind the fronts", front.both(), filepath.Join(filepath.Dir(front.front), "driver", "cuda")},
	} {
		t.Run(test.description, func(t *testing.T) {
			c := test.c.with("LD_PRELOAD=" + test.before + " " + test.c.library)
			cmd := c.command(program, strings.Fields(script)...)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			assert.Equal(t, 127, cmd.ProcessState.ExitCode(), "%s", out)
			assert.Contains(t, string(out), "gpuslice: "+test.before+" is loaded before the limiter")
			assert.Equal(t, 1, strings.Count(string(out), "\n"), "%s", out)
		})
	}
	for _, test := range []struct {
		description string
		c           *container
		preload     []string
	}{
		{"the driver's library after the limiter", plain, []string{plain.library, filepath.Join(plain.sim, "libcuda.so.1")}},
		{"the front before the limiter", front.both(), []string{filepath.Join(front.front, "libcuda.so.1"), front.both().library}},
		{"only the front", front, []string{filepath.Join(front.front, "libcuda.so.1")}},
	} {
		t.Run(test.description, func(t *testing.T) {
			lines, stderr := test.c.with("LD_PRELOAD="+strings.Join(test.preload, " ")).run(t, program, strings.Fields(script)...)
			assert.Empty(t, stderr)
			assert.Equal(t, []string{"init 0", "ctx 0", "alloc 2"}, lines)
		})
	}
}

// A tool's library that defines functions of the driver and passes them on is no driver.
func TestOtherPreloadsBeforeTheLimiterAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	source, tool := filepath.Join(dir, "tool.c"), filepath.Join(dir, "tool.so")
	require.NoError(t, os.WriteFile(source, []byte(`
#define _GNU_SOURCE
#include <dlfcn.h>
int cuInit(unsigned flags) { return ((int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit"))(flags); }
`), 0o644))
	require.NoError(t, compile(tool, source, "-shared", "-fPIC"))
	c := oneGPU(t, giB)
	lines, stderr := c.with("LD_PRELOAD="+tool+" "+c.library).probe(t, "init ctx 0 alloc 1073741825")
	assert.Empty(t, stderr)
	assert.Equal(t, []string{"init 0", "ctx 0", "alloc 2"}, lines)
}
