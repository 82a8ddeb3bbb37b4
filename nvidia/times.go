package nvidia

import (
	"context"
	"maps"
	"runtime"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ProcessTime is a process' share of a GPU's time.
type ProcessTime struct {
	PID     int
	Percent float64 // since the last call, 0 to 100
}

const (
	staleSample = 2 * time.Second
	// So many readings of a GPU that works, in all of which NVML shows no process at work, are a driver without figures:
	// its samples can be some readings late.
	mostUnseen = 5
	// leastWork is what a GPU does at least while it works, in percent: NVML shows processes in whole percents.
	leastWork = 5
)

// timing is what is known of a GPU's process times.
type timing struct {
	sampled uint64 // NVML's time stamp of the newest sample
	unseen  int
	source  TimeSource
}

// ProcessTimes returns the processes that used each GPU since the last call (the mean of NVML's samples), without GPUs in
// MIG mode and without those with TimesByLimiter in [Cache.TimeSources].
func (c *Cache) ProcessTimes(ctx context.Context) (map[string][]ProcessTime, error) {
	return query(ctx, c, "process times", wholeGPUs, func(uuid string, dev nvml.Device, label string) ([]ProcessTime, bool, error) {
		was := c.timing[uuid]
		is, times, err := c.reader.times(was, uint64(c.now().Add(-staleSample).UnixMicro()), uuid, dev, label)
		if err != nil {
			return nil, false, err
		}
		c.timing[uuid] = is
		if is.source != was.source {
			c.sourceChanged(uuid, was.source, is.source)
		}
		return times, is.source != TimesByLimiter, nil
	})
}

// TimeSources returns the source of each GPU's process times. GPUs that were not asked are missing.
func (c *Cache) TimeSources() map[string]TimeSource { return *c.sources.Load() }

// sourceChanged is called with c.mu held.
func (c *Cache) sourceChanged(uuid string, was, is TimeSource) {
	sources := maps.Clone(c.TimeSources())
	sources[uuid] = is
	c.sources.Store(&sources)
	switch {
	case is == TimesByLimiter:
		c.log.Warn("NVML does not show which processes use the GPU's time: it is known from the limiter only, and not compared with NVML", "gpu", uuid)
	case was != "":
		c.log.Info("the GPU's time by process has another source", "gpu", uuid, "source", string(is))
	}
}

// times asks the older call, which all drivers have, and then the newer one, the only one that answers on some GPUs.
func (r reader) times(was timing, oldest uint64, uuid string, dev nvml.Device, label string) (is timing, times []ProcessTime, err error) {
	is = was
	since := max(was.sampled, oldest)
	samples, ret := processUtilization(dev, since)
	times, is.sampled = meanTimes(samples, since)
	if working(times) {
		is.source, is.unseen = TimesBySamples, 0
		return is, times, nil
	}
	info, more := r.info(uuid, since)
	if later, newest := meanTimes(info, since); working(later) {
		is.source, is.unseen, is.sampled = TimesByInfo, 0, newest
		return is, later, nil
	}
	switch {
	case answered(ret) && is.source == "":
		is.source = TimesBySamples
	case answered(more) && is.source == "":
		is.source = TimesByInfo
	case answered(ret) || answered(more):
	default:
		if err := optional(label, "nvmlDeviceGetProcessUtilization", ret); err != nil {
			return was, nil, err
		}
		if err := optional(label, "nvmlDeviceGetProcessesUtilizationInfo", more); err != nil {
			return was, nil, err
		}
		is.source = TimesByLimiter
	}
	if rates, ret := dev.GetUtilizationRates(); ret == nvml.SUCCESS && rates.Gpu >= leastWork {
		is.unseen = min(is.unseen+1, mostUnseen)
	}
	if is.unseen == mostUnseen {
		is.source = TimesByLimiter
	}
	return is, times, nil
}

func answered(ret nvml.Return) bool { return ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_FOUND } // not found: no samples

func working(times []ProcessTime) bool {
	for _, t := range times {
		if t.Percent > 0 {
			return true
		}
	}
	return false
}

// timeSample is one of either call.
type timeSample struct {
	pid, percent uint32
	stamp        uint64
}

// processUtilization repeats the query: go-nvml v0.13.3 panics if a process starts between its call for the
// number of samples and that for the samples.
func processUtilization(dev nvml.Device, since uint64) (samples []timeSample, ret nvml.Return) {
	for range utilizationTries {
		samples, ret = processUtilizationOnce(dev, since)
		if ret != nvml.ERROR_INSUFFICIENT_SIZE {
			break
		}
	}
	return samples, ret
}

const utilizationTries = 5

func processUtilizationOnce(dev nvml.Device, since uint64) (samples []timeSample, ret nvml.Return) {
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case runtime.Error:
			samples, ret = nil, nvml.ERROR_INSUFFICIENT_SIZE
		default:
			panic(reason)
		}
	}()
	list, ret := dev.GetProcessUtilization(since)
	for _, s := range list {
		samples = append(samples, timeSample{pid: s.Pid, percent: s.SmUtil, stamp: s.TimeStamp})
	}
	return samples, ret
}

// meanTimes skips samples that are too old or have no PID, which drivers return.
func meanTimes(samples []timeSample, since uint64) ([]ProcessTime, uint64) {
	type sum struct{ percent, count float64 }
	sums := map[int]*sum{}
	var order []int
	newest := since
	for _, s := range samples {
		if s.pid == 0 || s.stamp <= since || s.percent > 100 {
			continue
		}
		pid := int(s.pid)
		if sums[pid] == nil {
			sums[pid] = &sum{}
			order = append(order, pid)
		}
		sums[pid].percent += float64(s.percent)
		sums[pid].count++
		newest = max(newest, s.stamp)
	}
	times := make([]ProcessTime, 0, len(order))
	for _, pid := range order {
		times = append(times, ProcessTime{PID: pid, Percent: sums[pid].percent / sums[pid].count})
	}
	return times, newest
}
