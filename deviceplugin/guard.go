package deviceplugin

import (
	"context"
	"log/slog"
	"time"
)

const (
	// guardInterval is the time between two looks at whether the node is guarded.
	guardInterval = 500 * time.Millisecond
	// guardPatience is how long the node may be unguarded before its replicas are
	// unhealthy. A runtime that restarts, or a plugin that connects again, is back
	// within it. A pod that comes meanwhile gets no GPU: Allocate grants nothing.
	guardPatience = 5 * time.Second
)

// Guard says whether the node's door is guarded. It forgives short gaps, and it begins
// unguarded: it forgives none before the door was guarded once.
type Guard struct {
	ready   func() error
	log     *slog.Logger
	guarded *watched[bool]
	seen    time.Time // when it was guarded last; zero: never
}

// NewGuard returns a guard of a condition, which is nil while the node is guarded.
func NewGuard(ready func() error, log *slog.Logger) *Guard {
	return &Guard{ready: ready, log: log, guarded: newWatched(false)}
}

// Guarded implements Condition.
func (g *Guard) Guarded() (bool, <-chan struct{}) { return g.guarded.get() }

// Run keeps the guard current until ctx ends. It has one owner, which waits for it.
func (g *Guard) Run(ctx context.Context) {
	tick := time.NewTicker(guardInterval)
	defer tick.Stop()
	for now := time.Now(); ; {
		g.look(now)
		select {
		case <-ctx.Done():
			return
		case now = <-tick.C:
		}
	}
}

// look asks the condition once.
func (g *Guard) look(now time.Time) {
	was, _ := g.guarded.get()
	err := g.ready()
	switch {
	case err == nil:
		g.seen = now
		if !was {
			g.log.Info("the node is guarded; its GPUs are offered")
			g.guarded.set(true)
		}
	case was && now.Sub(g.seen) >= guardPatience:
		g.log.Warn("the node is not guarded; its GPUs are offered to nobody", "error", err)
		g.guarded.set(false)
	}
}
