package nodeview

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
)

const (
	telemetryInterval = 5 * time.Second
	// telemetryStart is the same before the first result.
	telemetryStart = telemetryInterval / 20
	// telemetryKept is how long a result is valid: NVML can hang with a GPU.
	telemetryKept = 30 * time.Second
	useKept       = 10 * time.Second
)

type LiveConfig struct {
	// Snapshot and Dir are the ledger's.
	Snapshot func(context.Context) (*ledger.Snapshot, error)
	Dir      func(id string) string
	Node     func() node.File
	Cordoned func() ([]string, error)
	// Telemetry reads NVML. It can hang: only Run calls it.
	Telemetry func(context.Context) (map[string]nvidia.Telemetry, error)
	// Use returns the containers' use of the GPUs; optional.
	Use func() *feedback.Use
	// Holds returns the kernels that hold a GPU; optional.
	Holds func() []feedback.Hold
	Log   *slog.Logger
}

// Live is the view of an agent, with telemetry. It is safe for concurrent use.
type Live struct {
	config    LiveConfig
	telemetry atomic.Pointer[map[string]nvidia.Telemetry]
	now       func() time.Time
}

// NewLive returns a view. Without Run it has no telemetry.
func NewLive(c LiveConfig) *Live {
	l := &Live{config: c, now: time.Now}
	l.telemetry.Store(&map[string]nvidia.Telemetry{})
	return l
}

// Run reads NVML until ctx ends.
func (l *Live) Run(ctx context.Context) {
	var problem logonce.Problem
	begun := false
	periodic.Vary(ctx, nil, func() time.Duration {
		err := l.ReadTelemetry(ctx)
		begun = begun || err == nil || len(*l.telemetry.Load()) > 0
		if err != nil && !begun { // NVML is being opened
			return telemetryStart
		}
		if ctx.Err() == nil {
			problem.Warn(l.config.Log, "no telemetry of some GPUs", err)
		}
		return telemetryInterval
	})
}

func (l *Live) ReadTelemetry(ctx context.Context) error {
	read, err := l.config.Telemetry(ctx)
	if read != nil {
		l.telemetry.Store(&read)
	}
	return err
}

// Read returns the node with the last telemetry. It does not wait for NVML.
func (l *Live) Read(ctx context.Context) (view.Node, error) {
	snapshot, err := l.config.Snapshot(ctx)
	if err != nil {
		return view.Node{}, err
	}
	cordoned, err := l.config.Cordoned()
	n := compose(snapshot, l.config.Node(), cordoned, l.config.Dir)
	if err != nil {
		n.Problems = append(n.Problems, err.Error())
	}
	now := l.now()
	telemetry := *l.telemetry.Load()
	for i := range n.GPUs {
		c := &n.GPUs[i]
		if t, known := telemetry[c.UUID]; known && now.Sub(t.Taken) < telemetryKept {
			c.Telemetry = &t
		}
	}
	if l.config.Holds != nil {
		hold(n.Containers, l.config.Holds())
	}
	if l.config.Use == nil {
		return n, nil
	}
	if use := l.config.Use(); use != nil && now.Sub(use.At) < useKept {
		seen(n.Containers, use)
	}
	return n, nil
}

func hold(all []view.Container, holds []feedback.Hold) {
	for _, h := range holds {
		for i := range all {
			for j := range all[i].Shares {
				if s := &all[i].Shares[j]; all[i].ContainerID == h.Container && s.UUID == h.GPU {
					s.HoldsSince = h.Since.UTC()
				}
			}
		}
	}
}

func seen(all []view.Container, use *feedback.Use) {
	percents := make([]float64, 0, len(all))
	for i := range all {
		c := &all[i]
		if c.State == string(ledger.StateReleased) {
			continue
		}
		for j := range c.Shares {
			s := &c.Shares[j]
			if of, known := use.Percent[s.UUID]; known {
				percents = append(percents, of[c.ContainerID]) // 0 if missing
				s.CoreUsedPercent = &percents[len(percents)-1]
			}
			// The container's time is exact, but missing for launches without a limit.
			if at, worked := use.Worked[s.UUID][c.ContainerID]; worked && at.After(s.LastLaunch) {
				s.LastLaunch = at.UTC()
			}
		}
	}
}
