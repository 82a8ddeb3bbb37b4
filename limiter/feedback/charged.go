package feedback

import (
	"errors"
	"time"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// busyTimes are what the limiters have measured until the last step, by GPU and container.
type busyTimes map[string]map[string]busyTime

type busyTime struct {
	at time.Time
	ns uint64
}

// measure adds the use of GPUs without figures of NVML, by what the limiters of the containers count.
func (l *Loop) measure(now time.Time, busy map[string]map[string]float64, members map[string]*member) error {
	if l.config.Sources == nil {
		return nil
	}
	next := busyTimes{}
	for gpu, source := range l.config.Sources() {
		if source == nvidia.TimesByLimiter {
			next[gpu], busy[gpu] = map[string]busyTime{}, map[string]float64{}
		}
	}
	var failed error
	for id, m := range members {
		var cores []limiter.CoreUsage
		for i, d := range m.limits.Devices {
			if next[d.UUID] == nil {
				continue
			}
			if cores == nil {
				var err error
				if cores, err = limiter.ReadCoreUsage(limiter.UsagePath(m.Dir)); err != nil {
					failed = errors.Join(failed, err)
					break
				}
			}
			if i >= len(cores) {
				break
			}
			is := busyTime{now, cores[i].BusyNanoseconds}
			if was, known := l.charged[d.UUID][id]; known {
				busy[d.UUID][id] = was.percent(is)
			}
			next[d.UUID][id] = is
		}
	}
	l.charged = next
	return failed
}

// percent is for any numbers: the container can write them.
func (was busyTime) percent(is busyTime) float64 {
	passed := is.at.Sub(was.at)
	if passed <= 0 || is.ns <= was.ns {
		return 0
	}
	return min(100, 100*float64(is.ns-was.ns)/float64(passed))
}
