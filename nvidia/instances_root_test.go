//go:build root

package nvidia

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

func partitioned(t *testing.T, gpus ...string) (c *Cache, simctl func(...string)) {
	library, simctl := simulated(t, gpus...)
	c = NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{Profiles: true})
	require.NoError(t, c.Refresh(t.Context()))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, simctl
}

// Profiles of NVIDIA's MIG user guide.
func TestProfilesOfTheSimulatedDriver(t *testing.T) {
	for gpu, want := range map[string]map[string]int{ // by name: places
		"A100-40GB": {"1g.5gb": 7, "1g.5gb+me": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1},
		"A100-80GB": {"1g.10gb": 7, "1g.10gb+me": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1},
		"H100":      {"1g.10gb": 7, "1g.10gb+me": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1},
		"H200":      {"1g.18gb": 7, "1g.18gb+me": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1},
		"B200":      {"1g.23gb": 7, "1g.23gb+me": 7, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "4g.90gb": 1, "7g.180gb": 1},
		"GB200":     {"1g.23gb": 7, "1g.23gb+me": 7, "1g.47gb": 4, "2g.47gb": 3, "3g.93gb": 2, "4g.93gb": 1, "7g.186gb": 1},
	} {
		t.Run(gpu, func(t *testing.T) {
			c, simctl := partitioned(t, gpu, gpu+":mig=on")
			require.Empty(t, c.Node().Faults)
			require.Empty(t, c.Node().GPUs[0].Profiles, "not in MIG mode")
			got := map[string]int{}
			for _, p := range c.Node().GPUs[1].Profiles {
				got[p.Name] = len(p.Places)
				require.Positive(t, p.MemoryMiB)
				require.LessOrEqual(t, p.Most, len(p.Places))
				for _, place := range p.Places {
					require.LessOrEqual(t, place.Start+place.Size, 8)
				}
			}
			require.Equal(t, want, got)
			require.Empty(t, c.Node().GPUs[1].Instances)
			simctl("mig", "1", "create", c.Node().GPUs[1].Profiles[0].Name+":3")
			require.NoError(t, c.Refresh(t.Context()))
			instances := c.Node().GPUs[1].Instances
			require.Len(t, instances, 1)
			require.Equal(t, hardware.Place{Start: 3, Size: 1}, instances[0].Place)
			require.Equal(t, c.Node().GPUs[1].MIG[0].UUID, instances[0].Compute[0].UUID)
		})
	}
}

// A MIG device is made in two steps and destroyed in two.
func TestInstancesOfTheSimulatedDriver(t *testing.T) {
	c, simctl := partitioned(t, "H200", "H200:mig=on")
	ctx := t.Context()
	whole, gpu := c.Node().GPUs[0].UUID, c.Node().GPUs[1].UUID
	three := c.Node().GPUs[1].Profiles[2]
	require.Equal(t, "3g.71gb", three.Name)

	_, made, err := c.CreateInstance(ctx, whole, three.ID, 0, 4)
	require.ErrorContains(t, err, "not in MIG mode")
	require.False(t, made)
	_, made, err = c.CreateInstance(ctx, gpu, three.ID, 2, 4)
	require.ErrorIs(t, err, nvml.ERROR_INVALID_ARGUMENT, "no such place")
	require.False(t, made)
	simctl("fail", "nvmlGpuInstanceGetInfo", "1", "999")
	_, made, err = c.CreateInstance(ctx, gpu, three.ID, 4, 4)
	require.ErrorIs(t, err, nvml.ERROR_UNKNOWN)
	require.True(t, made)
	now, err := c.Instances(ctx, gpu)
	require.NoError(t, err)
	require.Len(t, now, 1)
	require.NoError(t, c.DestroyInstance(ctx, gpu, now[0].ID))
	id, made, err := c.CreateInstance(ctx, gpu, three.ID, 4, 4)
	require.NoError(t, err)
	require.True(t, made)
	for range 2 {
		_, made, err = c.CreateInstance(ctx, gpu, three.ID, 4, 4)
		require.ErrorIs(t, err, nvml.ERROR_INSUFFICIENT_RESOURCES)
		require.False(t, made)
	}
	require.NoError(t, c.Refresh(ctx))
	require.Empty(t, c.Node().GPUs[1].MIG, "a GPU instance without a compute instance is no MIG device")
	want := hardware.GPUInstance{ID: id, Profile: three.ID, Place: hardware.Place{Start: 4, Size: 4}}
	require.Equal(t, []hardware.GPUInstance{want}, c.Node().GPUs[1].Instances)

	require.NoError(t, c.CreateCompute(ctx, gpu, id))
	require.ErrorIs(t, c.CreateCompute(ctx, gpu, id), nvml.ERROR_INSUFFICIENT_RESOURCES)
	require.NoError(t, c.Refresh(ctx))
	require.Equal(t, "3g.71gb", c.Node().GPUs[1].MIG[0].Profile)
	want.Compute = []hardware.ComputeInstance{{UUID: c.Node().GPUs[1].MIG[0].UUID}}
	now, err = c.Instances(ctx, gpu)
	require.NoError(t, err)
	require.Equal(t, []hardware.GPUInstance{want}, now)

	err = c.DestroyInstance(ctx, gpu, id)
	require.True(t, InUse(err), "%v", err)
	simctl("fail", "nvmlComputeInstanceDestroy", "1", "19")
	err = c.DestroyCompute(ctx, gpu, id, 0)
	require.True(t, InUse(err), "%v", err)
	require.NoError(t, c.DestroyCompute(ctx, gpu, id, 0))
	require.ErrorIs(t, c.DestroyCompute(ctx, gpu, id, 0), nvml.ERROR_NOT_FOUND)
	require.NoError(t, c.DestroyInstance(ctx, gpu, id))
	require.ErrorIs(t, c.DestroyInstance(ctx, gpu, id), nvml.ERROR_NOT_FOUND)
	now, err = c.Instances(ctx, gpu)
	require.NoError(t, err)
	require.Empty(t, now)
}
