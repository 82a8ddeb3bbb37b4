package nvidia

import (
	"context"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMeanTimes(t *testing.T) {
	sample := func(pid uint32, at uint64, percent uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: at, SmUtil: percent}
	}
	times, newest := meanTimes([]nvml.ProcessUtilizationSample{
		sample(7, 101, 10), sample(8, 102, 50), sample(7, 103, 20),
		sample(9, 100, 90),                        // as old as what was seen
		sample(0, 104, 90), sample(10, 105, 4000), // of no process, and nonsense
	}, 100)
	assert.Equal(t, []ProcessTime{{7, 15}, {8, 50}}, times)
	assert.EqualValues(t, 103, newest)
	times, newest = meanTimes(nil, 100)
	assert.Empty(t, times)
	assert.EqualValues(t, 100, newest)
}

func TestProcessTimes(t *testing.T) {
	s := newEventServer()
	var asked []uint64
	answer := nvml.SUCCESS
	newest := uint64(time.Now().UnixMicro())
	for i := range s.Devices {
		d := s.device(i)
		d.GetProcessUtilizationFunc = func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			if i > 0 {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}
			asked = append(asked, since)
			return []nvml.ProcessUtilizationSample{{Pid: 7, TimeStamp: newest, SmUtil: 30}}, answer
		}
	}
	c := NewCache(s, CacheOptions{})
	ctx := context.Background()
	_, err := c.ProcessTimes(ctx)
	require.ErrorContains(t, err, "not open")
	require.NoError(t, c.Refresh(ctx))
	gpu := c.Node().GPUs[0].UUID

	times, err := c.ProcessTimes(ctx)
	require.NoError(t, err)
	assert.Equal(t, map[string][]ProcessTime{gpu: {{7, 30}}}, times, "GPUs without process times are not listed")
	_, err = c.ProcessTimes(ctx)
	require.NoError(t, err)
	assert.Equal(t, newest, asked[1], "what was seen is not asked for again")

	answer = nvml.ERROR_NOT_FOUND
	times, err = c.ProcessTimes(ctx)
	require.NoError(t, err)
	assert.Contains(t, times, gpu, "no process: an empty list")
	assert.Empty(t, times[gpu])
	answer = nvml.ERROR_UNKNOWN
	times, err = c.ProcessTimes(ctx)
	require.ErrorIs(t, err, nvml.ERROR_UNKNOWN)
	assert.Empty(t, times)
	require.NoError(t, c.Close())
}

// A process begins between go-nvml's two calls: NVML has more samples than the buffer holds,
// and go-nvml panics. The agent must not end because of it.
func TestProcessTimesWhenAProcessBegins(t *testing.T) {
	s := newEventServer()
	begins := 0
	for i := range s.Devices {
		s.device(i).GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			buffer := make([]nvml.ProcessUtilizationSample, 3)
			count := len(buffer)
			if begins > 0 {
				begins--
				count++
			}
			buffer[0] = nvml.ProcessUtilizationSample{Pid: 7, TimeStamp: uint64(time.Now().UnixMicro()), SmUtil: 30}
			return buffer[:count], nvml.SUCCESS
		}
	}
	c := NewCache(s, CacheOptions{})
	ctx := context.Background()
	require.NoError(t, c.Refresh(ctx))
	gpu := c.Node().GPUs[0].UUID
	begins = 1
	times, err := c.ProcessTimes(ctx)
	require.NoError(t, err)
	assert.Equal(t, []ProcessTime{{7, 30}}, times[gpu])
	begins = 1000
	times, err = c.ProcessTimes(ctx)
	require.ErrorIs(t, err, nvml.ERROR_INSUFFICIENT_SIZE)
	assert.Empty(t, times)
	require.NoError(t, c.Close())
}

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
