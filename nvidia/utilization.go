package nvidia

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ProcessTime is the share of a GPU's time that one process had.
type ProcessTime struct {
	PID     int     // as the agent's PID namespace has it
	Percent float64 // of the time since the last look, 0 to 100
}

// staleSample is how far back a first look goes, and one after a pause: older samples
// say nothing of now.
const staleSample = 2 * time.Second

// ProcessTimes says how much of each whole GPU's time each process had since the last
// call. A process that had none is not listed; a GPU that can't tell, as in MIG
// mode, isn't either. NVML has whole percents of samples of a sixth of a second to a
// second: what is here is their mean.
func (c *Cache) ProcessTimes(ctx context.Context) (map[string][]ProcessTime, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.open {
		return nil, errors.New("the GPUs' process times: NVML is not open")
	}
	if c.sampled == nil {
		c.sampled = map[string]uint64{}
	}
	times := map[string][]ProcessTime{}
	var failed error
	for _, gpu := range c.current.Load().Node.GPUs {
		if gpu.MIGEnabled {
			continue
		}
		of, known, err := c.processTimes(gpu)
		failed = errors.Join(failed, err)
		if known {
			times[gpu.UUID] = of
		}
	}
	return times, failed
}

func (c *Cache) processTimes(gpu GPU) (times []ProcessTime, known bool, err error) {
	what := gpu.label()
	dev, ret := c.reader.lib.DeviceGetHandleByUUID(gpu.UUID)
	if err := check(what, "nvmlDeviceGetHandleByUUID", ret); err != nil {
		return nil, false, err
	}
	now := c.now()
	since := max(c.sampled[gpu.UUID], uint64(now.Add(-staleSample).UnixMicro()))
	samples, ret := processUtilization(dev, since)
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_FOUND: // nobody had any
		c.sampled[gpu.UUID] = since
		return nil, true, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil, false, nil
	default:
		return nil, false, check(what, "nvmlDeviceGetProcessUtilization", ret)
	}
	times, c.sampled[gpu.UUID] = meanTimes(samples, since)
	return times, true, nil
}

// processUtilization reads NVML's samples. go-nvml calls NVML twice: for the number of samples, and
// for the samples. If a process begins in between, NVML needs more room, and go-nvml v0.13.3 panics.
// Any program on the GPU can cause this, so the query is repeated.
func processUtilization(dev nvml.Device, since uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	for range utilizationTries {
		samples, ret = processUtilizationOnce(dev, since)
		if ret != nvml.ERROR_INSUFFICIENT_SIZE {
			break
		}
	}
	return samples, ret
}

// utilizationTries bounds the queries for one GPU.
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

// meanTimes adds up samples by process, and says which is the newest. Drivers give
// rows that are older than what was asked for, and of no process.
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
