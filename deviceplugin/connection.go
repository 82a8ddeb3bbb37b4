package deviceplugin

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuslice/gpuslice/internal/periodic"
)

const (
	pollInterval = 500 * time.Millisecond
	// interruption is the time without a connection after which the devices are unhealthy.
	// Meanwhile pods get no GPU, because Allocate grants nothing.
	interruption = 5 * time.Second
)

// Connection reports whether the agent is connected to the container runtime, and ignores short
// interruptions. It starts as not connected.
type Connection struct {
	ready     func() error
	log       *slog.Logger
	connected *watched[bool]
	seen      time.Time
}

// NewConnection uses ready, which returns nil while the agent is connected.
func NewConnection(ready func() error, log *slog.Logger) *Connection {
	return &Connection{ready: ready, log: log, connected: newWatched(false)}
}

func (c *Connection) Connected() (bool, <-chan struct{}) { return c.connected.get() }

// Run polls until ctx ends. Only one goroutine may call it.
func (c *Connection) Run(ctx context.Context) {
	periodic.Vary(ctx, nil, func() time.Duration {
		c.look(time.Now())
		return pollInterval
	})
}

func (c *Connection) look(now time.Time) {
	was, _ := c.connected.get()
	err := c.ready()
	switch {
	case err == nil:
		c.seen = now
		if !was {
			c.log.Info("connected to the container runtime: GPUs are offered")
			c.connected.set(true)
		}
	case was && now.Sub(c.seen) >= interruption:
		c.log.Warn("not connected to the container runtime: GPUs are reported as unhealthy", "error", err)
		c.connected.set(false)
	}
}
