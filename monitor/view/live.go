package view

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

const (
	// telemetryInterval is the time between two questions to NVML. Who looks more often
	// sees the same numbers.
	telemetryInterval = 5 * time.Second
	// telemetryStart is the same before the first answer.
	telemetryStart = telemetryInterval / 20
	// telemetryKept is how long an answer is shown: NVML may hang with a GPU that hangs,
	// and what it said before is no news then.
	telemetryKept = 30 * time.Second
	// useKept is the same of what limiter/feedback sees each second, or every three.
	useKept = 10 * time.Second
)

// LiveConfig is where an agent's own view comes from.
type LiveConfig struct {
	// Snapshot and Directory are the ledger's.
	Snapshot func(context.Context) (*ledger.Snapshot, error)
	Dir      func(id string) string
	// Node is what is told of the node.
	Node func() node.File
	// Cordoned are the GPUs that nothing more is to be granted on.
	Cordoned func() ([]string, error)
	// Telemetry asks NVML. It may hang: Run alone calls it.
	Telemetry func(context.Context) (map[string]nvidia.Telemetry, error)
	// Use is what NVML saw containers have of the GPUs; nil where nobody asks it.
	Use func() *feedback.Use
	Log *slog.Logger
}

// Live is the view of an agent, which knows more than its node's files say, and has the
// ledger in memory. It is safe for concurrent use.
type Live struct {
	config LiveConfig
	told   atomic.Pointer[map[string]nvidia.Telemetry]
	now    func() time.Time
}

// NewLive makes a view. Without Run it has no telemetry.
func NewLive(c LiveConfig) *Live {
	l := &Live{config: c, now: time.Now}
	l.told.Store(&map[string]nvidia.Telemetry{})
	return l
}

// Run asks NVML every few seconds, until ctx ends.
func (l *Live) Run(ctx context.Context) {
	said, begun := "", false
	for {
		text, pause := "", telemetryInterval
		err := l.Ask(ctx)
		begun = begun || err == nil || len(*l.told.Load()) > 0
		switch {
		case err != nil && !begun: // NVML is being opened; that it can't be, others say
			pause = telemetryStart
		case err != nil && ctx.Err() == nil:
			text = err.Error()
		}
		if text != said && text != "" { // once, not every few seconds
			l.config.Log.Warn("telemetry of the GPUs is missing", "error", text)
		}
		said = text
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Ask asks NVML once.
func (l *Live) Ask(ctx context.Context) error {
	told, err := l.config.Telemetry(ctx)
	if told != nil {
		l.told.Store(&told)
	}
	return err
}

// Read is the node as it is now, with NVML's last answers. It waits for no GPU.
func (l *Live) Read(ctx context.Context) (Node, error) {
	snapshot, err := l.config.Snapshot(ctx)
	if err != nil {
		return Node{}, err
	}
	cordoned, err := l.config.Cordoned()
	n := compose(snapshot, l.config.Node(), cordoned, containers(snapshot, l.config.Dir))
	if err != nil {
		n.Problems = append(n.Problems, err.Error())
	}
	now := l.now()
	told := *l.told.Load()
	for i := range n.GPUs {
		c := &n.GPUs[i]
		if t, known := told[c.UUID]; known && now.Sub(t.Taken) < telemetryKept {
			c.Telemetry = &t
		}
	}
	if l.config.Use == nil {
		return n, nil
	}
	if use := l.config.Use(); use != nil && now.Sub(use.At) < useKept {
		seen(n.Containers, use)
	}
	return n, nil
}

// seen fills in what NVML saw of containers.
func seen(all []Container, use *feedback.Use) {
	percents := make([]float64, 0, len(all))
	for i := range all {
		c := &all[i]
		if c.State == string(ledger.StateReleased) {
			continue
		}
		for j := range c.Shares {
			s := &c.Shares[j]
			if of, tells := use.Percent[s.UUID]; tells {
				percents = append(percents, of[c.ContainerID]) // or none
				s.CoreUsedPercent = &percents[len(percents)-1]
			}
			// What the container says is exact; of launches without a limit it says nothing.
			if at, worked := use.Worked[s.UUID][c.ContainerID]; worked && at.After(s.LastLaunch) {
				s.LastLaunch = at.UTC()
			}
		}
	}
}
