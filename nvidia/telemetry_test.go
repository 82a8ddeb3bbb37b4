package nvidia

import (
	"context"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTelemetry(t *testing.T) {
	library, simctl := simulated(t, "H200:temperature=61,power_mw=350500,utilization=87", "T4", "A100-40GB:mig=1g.5gb")
	c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{})
	ctx := context.Background()
	_, err := c.Telemetry(ctx)
	require.ErrorContains(t, err, "not open")
	require.NoError(t, c.Refresh(ctx))
	gpus := c.Node().GPUs

	all, err := c.Telemetry(ctx)
	require.NoError(t, err)
	require.Len(t, all, 4)
	h200 := all[gpus[0].UUID]
	assert.False(t, h200.Taken.IsZero())
	assert.EqualValues(t, 0, *h200.MemoryUsedBytes, "the driver's own memory is not used memory")
	assert.EqualValues(t, gpus[0].MemoryMiB, *h200.MemoryTotalBytes/bytesPerMiB)
	assert.Equal(t, 87, *h200.UtilizationPercent)
	assert.Equal(t, 43, *h200.MemoryControllerPercent)
	assert.Equal(t, 61, *h200.TemperatureCelsius)
	assert.EqualValues(t, 350500, *h200.PowerMilliwatts)

	split, device := all[gpus[2].UUID], all[gpus[2].MIG[0].UUID]
	assert.Nil(t, split.UtilizationPercent, "not available in MIG mode")
	assert.NotNil(t, split.TemperatureCelsius)
	assert.EqualValues(t, gpus[2].MIG[0].MemoryMiB, *device.MemoryTotalBytes/bytesPerMiB)
	assert.Nil(t, device.TemperatureCelsius)
	assert.Nil(t, device.PowerMilliwatts)

	simctl("set", "0", "temperature=93", "utilization=0")
	simctl("fail", "nvmlDeviceGetPowerUsage", "1", "3")         // not supported
	simctl("fail", "nvmlDeviceGetMemoryInfo_v2", "1", "3")      // nor is this
	simctl("fail", "nvmlDeviceGetUtilizationRates", "1", "999") // unknown error
	all, err = c.Telemetry(ctx)
	require.ErrorContains(t, err, "GPU 0 ("+gpus[0].UUID+"): nvmlDeviceGetUtilizationRates")
	require.Len(t, all, 4)
	h200 = all[gpus[0].UUID]
	assert.Equal(t, 93, *h200.TemperatureCelsius)
	assert.Nil(t, h200.PowerMilliwatts)
	assert.Nil(t, h200.UtilizationPercent)
	assert.Positive(t, *h200.MemoryUsedBytes, "by the older call, with what the driver keeps")

	simctl("lose", "1")
	all, err = c.Telemetry(ctx)
	require.ErrorIs(t, err, nvml.ERROR_GPU_IS_LOST)
	assert.NotContains(t, all, gpus[1].UUID)
	require.NoError(t, c.Close())
}
