package nvidia

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMeanTimes(t *testing.T) {
	times, newest := meanTimes([]timeSample{
		{7, 10, 101}, {8, 50, 102}, {7, 20, 103},
		{9, 90, 100},                  // as old as what was seen
		{0, 90, 104}, {10, 4000, 105}, // of no process, and nonsense
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
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.SUCCESS }
	}
	c := NewCache(s, CacheOptions{})
	c.reader.info = func(string, uint64) ([]timeSample, nvml.Return) { return nil, nvml.ERROR_FUNCTION_NOT_FOUND }
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

// Processes that work are never reported as idle: figures that are missing or that can't be are not used.
func TestTimeSources(t *testing.T) {
	s := newEventServer()
	var old, info nvml.Return
	var percent, infoPercent, gpuPercent uint32
	now := time.Now()
	for i := range s.Devices {
		d := s.device(i)
		d.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			if old != nvml.SUCCESS {
				return nil, old
			}
			return []nvml.ProcessUtilizationSample{{Pid: 7, TimeStamp: uint64(now.UnixMicro()), SmUtil: percent}}, old
		}
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: gpuPercent}, nvml.SUCCESS }
	}
	var log strings.Builder
	var c *Cache
	var gpu string
	read := func(want TimeSource, wantPercent float64) {
		t.Helper()
		now = now.Add(time.Second)
		times, err := c.ProcessTimes(context.Background())
		require.NoError(t, err)
		assert.Equal(t, want, c.TimeSources()[gpu])
		of, known := times[gpu]
		assert.Equal(t, want != TimesByLimiter, known)
		if wantPercent > 0 {
			assert.Equal(t, []ProcessTime{{7, wantPercent}}, of)
		}
	}
	begin := func(first, second nvml.Return) {
		old, info, percent, infoPercent, gpuPercent = first, second, 0, 0, 0
		log.Reset()
		c = NewCache(s, CacheOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
		c.now = func() time.Time { return now }
		c.reader.info = func(uuid string, since uint64) ([]timeSample, nvml.Return) {
			if info != nvml.SUCCESS {
				return nil, info
			}
			return []timeSample{{7, infoPercent, uint64(now.UnixMicro())}}, info
		}
		require.NoError(t, c.Refresh(context.Background()))
		gpu = c.Node().GPUs[0].UUID
	}

	begin(nvml.ERROR_NOT_SUPPORTED, nvml.SUCCESS) // Blackwell
	assert.Empty(t, c.TimeSources(), "it was not asked yet")
	infoPercent, gpuPercent = 40, 40
	read(TimesByInfo, 40)
	assert.NotContains(t, log.String(), "source")

	begin(nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND)
	read(TimesByLimiter, 0)
	read(TimesByLimiter, 0)
	assert.Equal(t, len(c.Node().GPUs), strings.Count(log.String(), "NVML does not show"), "once for each GPU")

	// It is zero for everybody, while the GPU works.
	for _, answer := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_NOT_FOUND} {
		begin(answer, answer)
		for range 2 * mostUnseen {
			read(TimesBySamples, 0) // the GPU is idle
		}
		gpuPercent = 60
		for range mostUnseen - 1 {
			read(TimesBySamples, 0)
		}
		read(TimesByLimiter, 0)
		gpuPercent = 0
		read(TimesByLimiter, 0)
		old, percent, gpuPercent = nvml.SUCCESS, 60, 60
		read(TimesBySamples, 60)
		assert.Contains(t, log.String(), "another source")
	}

	begin(nvml.SUCCESS, nvml.SUCCESS) // samples come late
	gpuPercent = 60
	for range 10 {
		percent = 0
		for range mostUnseen - 1 {
			read(TimesBySamples, 0)
		}
		percent = 60
		read(TimesBySamples, 60)
	}
	percent, infoPercent = 0, 60
	read(TimesByInfo, 60)

	begin(nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN)
	_, err := c.ProcessTimes(context.Background())
	require.ErrorIs(t, err, nvml.ERROR_UNKNOWN)
	assert.Empty(t, c.TimeSources())
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
		s.device(i).GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.SUCCESS }
	}
	c := NewCache(s, CacheOptions{})
	c.reader.info = func(string, uint64) ([]timeSample, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
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

// The simulated driver answers as the drivers do that are named with its process_utilization.
func TestTimeSourcesOfTheSimulatedDriver(t *testing.T) {
	library, simctl := simulated(t, "H200")
	ctx := context.Background()
	build := filepath.Dir(filepath.Dir(library))
	worker := exec.Command(filepath.Join(build, "workloads/launch"), "--seconds=600", "--duration-us=20000", "--in-flight=2")
	worker.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library))
	require.NoError(t, worker.Start())
	t.Cleanup(func() { _ = worker.Process.Kill(); _ = worker.Wait() })
	for word, want := range map[string]TimeSource{
		"detailed": TimesBySamples, "info": TimesByInfo, "zero": TimesByLimiter, "none": TimesByLimiter, "missing": TimesByLimiter,
	} {
		simctl("set", "0", "process_utilization="+word)
		c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{})
		require.NoError(t, c.Refresh(ctx))
		gpu := c.Node().GPUs[0].UUID
		require.Eventually(t, func() bool {
			times, err := c.ProcessTimes(ctx)
			require.NoError(t, err)
			of, known := times[gpu]
			if want == TimesByLimiter {
				return !known
			}
			return len(of) == 1 && of[0].PID == worker.Process.Pid && of[0].Percent > 0
		}, time.Minute, 20*time.Millisecond, word)
		assert.Equal(t, want, c.TimeSources()[gpu], word)
		require.NoError(t, c.Close())
	}
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
