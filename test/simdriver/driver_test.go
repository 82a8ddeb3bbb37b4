//go:build root

package simdriver

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

const mib = 1 << 20

// The checks of testdata/simdriver/check, each in a process of its own, on an H200.
func TestChecks(t *testing.T) {
	for name, variant := range map[string]Variant{"plain": Plain, "sanitized": Sanitized, "threads": Threads} {
		t.Run(name, func(t *testing.T) {
			s := New(t, variant, "H200:event_ns=0") // some compare the times of kernels exactly
			list, err := s.Command("sim/check").Output()
			require.NoError(t, err)
			require.Greater(t, len(strings.Fields(string(list))), 5)
			for _, check := range strings.Fields(string(list)) {
				t.Run(check, func(t *testing.T) {
					text, err := s.Command("sim/check", check).CombinedOutput()
					require.NoError(t, err, "%s", text)
					gpu := s.Status().GPUs[0]
					require.Zero(t, gpu.MemoryUsedBytes)
				})
			}
		})
	}
}

func TestEveryWorkloadRunsSanitized(t *testing.T) {
	for name, variant := range map[string]Variant{"sanitized": Sanitized, "threads": Threads} {
		t.Run(name, func(t *testing.T) {
			s := New(t, variant, "T4", "T4:kernel_us=5")
			for _, line := range []string{
				"meminfo", "meminfo --lookup=getproc", "meminfo --lookup=getproc_v2 --no-nvml", "meminfo-direct",
				"alloc --chunk-mib=512", "alloc --kind=pitch --chunk-mib=1000 --keep", "alloc --kind=managed --max-mib=128",
				"hold --mib=5 --seconds=0.01", "launch --count=20 --in-flight=4 --device=1",
				"churn --workers=3 --seconds=0.4 --kill-every-ms=50 --max-kib=2097152",
			} {
				words := strings.Fields(line)
				_, code := s.Run("workloads/"+words[0], words[1:]...)
				require.Zero(t, code, line)
			}
			s.Ctl("status")
			s.Ctl("reset-peak")
			require.Zero(t, s.Status().GPUs[0].MemoryUsedBytes)
		})
	}
}

func TestLibrariesExportTheirTableAndNeedOnlyLibc(t *testing.T) {
	s := New(t, Plain)
	var table []string
	for _, line := range strings.Split(strings.TrimSpace(s.Ctl("symbols")), "\n") {
		table = append(table, strings.Fields(line)[0])
	}
	sort.Strings(table)
	table = slices.Compact(table) // a function may have several names to look it up by
	require.Equal(t, table, exports(t, filepath.Join(s.Dir, "sim/libcuda.so.1")))
	for _, name := range exports(t, filepath.Join(s.Dir, "sim/libnvidia-ml.so.1")) {
		require.True(t, strings.HasPrefix(name, "nvml"), name)
	}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		file, err := elf.Open(filepath.Join(s.Dir, "sim", name))
		require.NoError(t, err)
		defer file.Close()
		needed, err := file.ImportedLibraries()
		require.NoError(t, err)
		require.Subset(t, []string{"libc.so.6", filepath.Base(harness.Loader)}, needed) // the loader, for thread-local storage
		soname, err := file.DynString(elf.DT_SONAME)
		require.NoError(t, err)
		require.Equal(t, []string{name}, soname)
	}
}

func exports(t *testing.T, path string) []string {
	file, err := elf.Open(path)
	require.NoError(t, err)
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	var names []string
	for _, symbol := range symbols {
		// Linkers for arm64 also list sections, which have no name.
		if symbol.Section != elf.SHN_UNDEF && elf.ST_TYPE(symbol.Info) != elf.STT_SECTION {
			names = append(names, symbol.Name)
		}
	}
	sort.Strings(names)
	return names
}

// A preloaded library that has functions of the same names must not get between the driver and itself: cuGetProcAddress
// returns the driver's own functions, as the real one does, and a preloaded limiter depends on it.
func TestPreloadDoesNotReachIntoTheDriver(t *testing.T) {
	s := New(t, Plain, "T4")
	dir := t.TempDir()
	source := filepath.Join(dir, "hook.c")
	hook := filepath.Join(dir, "hook.so")
	code := `int cuMemAlloc_v2(unsigned long long *p, unsigned long n) { (void)p; (void)n; return 999; }`
	require.NoError(t, os.WriteFile(source, []byte(code), 0o644))
	text, err := exec.Command("cc", "-shared", "-fPIC", "-o", hook, source).CombinedOutput()
	require.NoError(t, err, "%s", text)
	s.Env = []string{"LD_PRELOAD=" + hook}

	values, code1 := s.Run("workloads/alloc", "--max-mib=64", "--lookup=getproc_v2")
	require.Zero(t, code1)
	require.EqualValues(t, 64*mib, values.Int("allocated_bytes"))
}

func TestFailureInjection(t *testing.T) {
	s := New(t, Plain, "T4")
	alloc := func() Values {
		values, _ := s.Run("workloads/alloc", "--max-mib=64", "--chunk-mib=64")
		return values
	}
	for _, test := range []struct {
		description string
		fail        []string
		want        Values // of the run that fails
		times       int
	}{
		{"an allocation, by default out of memory", []string{"cuMemAlloc_v2", "2"},
			Values{"chunks": "0", "result": "CUDA_ERROR_OUT_OF_MEMORY"}, 2},
		{"an allocation, by name of the error", []string{"cuMemAlloc_v2", "1", "LAUNCH_FAILED"},
			Values{"result": "CUDA_ERROR_LAUNCH_FAILED"}, 1},
		{"a context", []string{"cuDevicePrimaryCtxRetain", "1", "CUDA_ERROR_DEVICE_UNAVAILABLE"},
			Values{"failed": "cuDevicePrimaryCtxRetain", "error": "CUDA_ERROR_DEVICE_UNAVAILABLE"}, 1},
		{"init", []string{"cuInit", "1", "100"}, Values{"failed": "cuInit", "error": "CUDA_ERROR_NO_DEVICE"}, 1},
	} {
		t.Run(test.description, func(t *testing.T) {
			s.Ctl(append([]string{"fail"}, test.fail...)...)
			for range test.times {
				values := alloc()
				for key, want := range test.want {
					require.Equal(t, want, values[key])
				}
			}
			require.Equal(t, "1", alloc()["chunks"], "only so many calls fail")
		})
	}
	s.Ctl("fail", "cuMemAlloc_v2", "1000")
	require.Equal(t, []Fail{{Symbol: "cuMemAlloc_v2", Left: 1000, Error: 2}}, s.Status().Fails)
	s.Ctl("unfail")
	require.Empty(t, s.Status().Fails)
	require.Equal(t, "1", alloc()["chunks"])
}

func TestLaunchesTakeTimeAndShareTheGPU(t *testing.T) {
	s := New(t, Plain, "H200:event_ns=0") // all of its busy time is that of kernels
	values, code := s.Run("workloads/launch", "--count=40", "--duration-us=1000", "--in-flight=10")
	require.Zero(t, code)
	milliseconds, err := strconv.ParseFloat(values["event_ms"], 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, milliseconds, 40.0)
	gpu := s.Status().GPUs[0]
	require.EqualValues(t, 40, gpu.Launches)
	require.EqualValues(t, 40e6, gpu.BusyNanoseconds)

	// Two processes with 300 ms of work each are done no sooner than after 600 ms.
	begin := time.Now()
	first := s.Start("workloads/launch", "--count=300", "--duration-us=1000", "--in-flight=300")
	values, code = s.Run("workloads/launch", "--count=300", "--duration-us=1000", "--in-flight=300")
	require.Zero(t, code)
	require.NoError(t, first.Wait())
	require.GreaterOrEqual(t, time.Since(begin), 600*time.Millisecond)
	require.EqualValues(t, 300, values.Int("launches"))
	require.EqualValues(t, 640e6, s.Status().GPUs[0].BusyNanoseconds)
}
