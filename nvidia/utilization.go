package nvidia

import (
	"context"
	"runtime"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ProcessTime is a process' share of a GPU's time.
type ProcessTime struct {
	PID     int
	Percent float64 // since the last call, 0 to 100
}

const staleSample = 2 * time.Second

// ProcessTimes returns the processes that used each GPU since the last call (the mean of NVML's
// samples), without GPUs in MIG mode.
func (c *Cache) ProcessTimes(ctx context.Context) (map[string][]ProcessTime, error) {
	return query(ctx, c, "process times", wholeGPUs, func(uuid string, dev nvml.Device, label string) (times []ProcessTime, known bool, err error) {
		since := max(c.sampled[uuid], uint64(c.now().Add(-staleSample).UnixMicro()))
		samples, ret := processUtilization(dev, since)
		switch ret {
		case nvml.SUCCESS, nvml.ERROR_NOT_FOUND: // not found: no samples
			times, c.sampled[uuid] = meanTimes(samples, since)
			return times, true, nil
		default:
			return nil, false, optional(label, "nvmlDeviceGetProcessUtilization", ret)
		}
	})
}

// processUtilization repeats the query: go-nvml v0.13.3 panics if a process starts between its call for the
// number of samples and that for the samples.
func processUtilization(dev nvml.Device, since uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	for range utilizationTries {
		samples, ret = processUtilizationOnce(dev, since)
		if ret != nvml.ERROR_INSUFFICIENT_SIZE {
			break
		}
	}
	return samples, ret
}

const utilizationTries = 5

func processUtilizationOnce(dev nvml.Device, since uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case runtime.Error:
			samples, ret = nil, nvml.ERROR_INSUFFICIENT_SIZE
		default:
			panic(reason)
		}
	}()
	return dev.GetProcessUtilization(since)
}

// meanTimes skips samples that are too old or have no PID, which drivers return.
func meanTimes(samples []nvml.ProcessUtilizationSample, since uint64) ([]ProcessTime, uint64) {
	type sum struct{ percent, count float64 }
	sums := map[int]*sum{}
	var order []int
	newest := since
	for _, s := range samples {
		if s.Pid == 0 || s.TimeStamp <= since || s.SmUtil > 100 {
			continue
		}
		pid := int(s.Pid)
		if sums[pid] == nil {
			sums[pid] = &sum{}
			order = append(order, pid)
		}
		sums[pid].percent += float64(s.SmUtil)
		sums[pid].count++
		newest = max(newest, s.TimeStamp)
	}
	times := make([]ProcessTime, 0, len(order))
	for _, pid := range order {
		times = append(times, ProcessTime{PID: pid, Percent: sums[pid].percent / sums[pid].count})
	}
	return times, newest
}
