package nvidia

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

const firstGPU = "GPU-00000001-5151-4000-8000-000000000001"

// The results are those that were seen of driver 615: misc has the same result for "no limit" and "not possible".
func TestMemoryLimitsOfTheSimulatedDriver(t *testing.T) {
	for _, tt := range []struct {
		backend        string
		none, ancestor error
	}{
		{"misc", nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND},
		{"dmem", nil, nil},
	} {
		t.Run(tt.backend, func(t *testing.T) {
			root := t.TempDir()
			t.Setenv("SIMGPU_CGROUP_ROOT", root)
			library, simctl := simulated(t, "H200", "H200:mig=on")
			simctl("set", "driver", "branch=615", "memory_limits="+tt.backend)
			group := filepath.Join(root, "pod/container")
			require.NoError(t, os.MkdirAll(filepath.Join(group, "nested"), 0o755))
			c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{})
			require.Error(t, c.SetMemoryLimit(t.Context(), firstGPU, group, 1<<30), "not open yet")
			require.NoError(t, c.Refresh(t.Context()))
			defer func() { require.NoError(t, c.Close()) }()

			limit, err := c.MemoryLimit(t.Context(), firstGPU, group)
			require.ErrorIs(t, err, tt.none)
			if tt.none == nil {
				assert.Equal(t, MemoryLimit{Hard: hardware.NoMemoryLimit}, limit)
			}
			require.NoError(t, c.SetMemoryLimit(t.Context(), firstGPU, group, 5<<30))
			limit, err = c.MemoryLimit(t.Context(), firstGPU, group)
			require.NoError(t, err)
			assert.Equal(t, MemoryLimit{Hard: 5 << 30}, limit)
			_, err = c.MemoryLimit(t.Context(), firstGPU, filepath.Join(group, "nested"))
			require.ErrorIs(t, err, tt.ancestor)

			require.NoError(t, c.SetMemoryLimit(t.Context(), firstGPU, group, hardware.NoMemoryLimit))
			_, err = c.MemoryLimit(t.Context(), firstGPU, group)
			require.ErrorIs(t, err, tt.none)

			const withMIG = "GPU-00000002-5151-4000-8000-000000000002"
			require.ErrorIs(t, c.SetMemoryLimit(t.Context(), withMIG, group, 1<<30), nvml.ERROR_NOT_SUPPORTED)
			for _, path := range []string{"", "pod/container", filepath.Join(root, "absent"), "/other"} {
				require.ErrorIs(t, c.SetMemoryLimit(t.Context(), firstGPU, path, 1<<30), nvml.ERROR_INVALID_ARGUMENT, path)
			}
			require.ErrorContains(t, c.SetMemoryLimit(t.Context(), firstGPU, group+"\x00x", 1), "zero byte")
			simctl("fail", "nvmlDeviceSetMemoryLimits_v1", "1", "4")
			require.ErrorIs(t, c.SetMemoryLimit(t.Context(), firstGPU, group, 1<<30), nvml.ERROR_NO_PERMISSION)
		})
	}
}

// Programs without any limiter, in the group and in one below it, have together what the group may have.
func TestMemoryLimitHoldsWithoutTheLimiter(t *testing.T) {
	for _, backend := range []string{"misc", "dmem"} {
		t.Run(backend, func(t *testing.T) {
			root := t.TempDir()
			t.Setenv("SIMGPU_CGROUP_ROOT", root)
			library, simctl := simulated(t, "H200")
			simctl("set", "driver", "branch=615", "memory_limits="+backend)
			group := filepath.Join(root, "container")
			require.NoError(t, os.MkdirAll(filepath.Join(group, "nested"), 0o755))
			c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{})
			require.NoError(t, c.Refresh(t.Context()))
			defer func() { require.NoError(t, c.Close()) }()
			const limit = 4 << 30
			require.NoError(t, c.SetMemoryLimit(t.Context(), firstGPU, group, limit))

			hold := func(cgroup string, args ...string) (printed string) {
				cmd := exec.Command("../build/workloads/alloc", append(args, "--chunk-mib", "2", "--hold", "0")...)
				cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library), "SIMGPU_CGROUP="+cgroup)
				out, err := cmd.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, cmd.Start())
				t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
				lines := bufio.NewScanner(out)
				for lines.Scan() && lines.Text() != "ready=1" {
					printed += lines.Text() + "\n"
				}
				return printed
			}
			assert.Contains(t, hold(group, "--max-mib", "1024"), "total_bytes=4294967296\n", "the limit is what it sees")
			refused := hold(filepath.Join(group, "nested"))
			assert.Contains(t, refused, "result=CUDA_ERROR_OUT_OF_MEMORY\n")
			assert.Contains(t, refused, "free_bytes=0\n")
			now, err := c.MemoryLimit(t.Context(), firstGPU, group)
			require.NoError(t, err)
			assert.Equal(t, MemoryLimit{Hard: limit, Used: limit}, now, "0 bytes over")
			assert.Contains(t, hold(root, "--max-mib", "8192"), "result=CUDA_SUCCESS\n", "another group has no limit")
		})
	}
}

func TestNoMemoryLimitsInOlderDrivers(t *testing.T) {
	library, simctl := simulated(t, "H200")
	simctl("set", "driver", "branch=580")
	c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{})
	require.NoError(t, c.Refresh(t.Context()))
	defer func() { require.NoError(t, c.Close()) }()
	require.ErrorIs(t, c.SetMemoryLimit(t.Context(), firstGPU, t.TempDir(), 1<<30), nvml.ERROR_FUNCTION_NOT_FOUND)
}
