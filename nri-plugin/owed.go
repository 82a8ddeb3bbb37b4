package nriplugin

import (
	"context"
	"sync"
	"time"
)

// BackgroundInterval is the time between two turns of the background work.
const BackgroundInterval = 5 * time.Second

// debt is what is to be given back of a container. A removal takes a release with it.
type debt int

const (
	release debt = iota + 1
	remove
)

// owed are claims that could not be given back when the runtime said so: the
// state directory was full or read-only, the lock was taken for too long. The runtime
// says it once, so they are remembered and tried again. What is forgotten by a
// restart is found by the next Synchronize.
type owed struct {
	mu   sync.Mutex
	byID map[string]debt
}

// add remembers a debt. A release never takes the place of a removal.
func (o *owed) add(id string, what debt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string]debt{}
	}
	o.byID[id] = max(o.byID[id], what)
}

// paid forgets a debt that what has settled: a release does not settle a removal.
func (o *owed) paid(id string, what debt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if what >= o.byID[id] {
		delete(o.byID, id)
	}
}

// due is a copy of all debts.
func (o *owed) due() map[string]debt {
	o.mu.Lock()
	defer o.mu.Unlock()
	due := make(map[string]debt, len(o.byID))
	for id, what := range o.byID {
		due[id] = what
	}
	return due
}

// giveBackInTime gives back before the runtime's deadline, or later: to be late
// would cost the connection.
func (p *Plugin) giveBackInTime(ctx context.Context, id string, what debt) {
	defer p.health.begin(id)()
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, innerDeadline(time.Now(), deadline))
		defer cancel()
	}
	p.giveBack(ctx, id, what)
}

// giveBack releases or removes a claim, now or later. It never fails the
// runtime's event: the container is gone in any case.
func (p *Plugin) giveBack(ctx context.Context, id string, what debt) {
	do := p.Ledger.Release
	if what == remove {
		do = p.Ledger.Remove
	}
	if err := do(ctx, id); err != nil {
		p.Log.Error("claim not given back; it is tried again", "id", id, "error", err)
		p.owed.add(id, what)
		return
	}
	p.owed.paid(id, what)
}

// background runs until ctx ends: it retries releases, sets limits to what is reserved, and
// truncates usage files that grew.
func (p *Plugin) background(ctx context.Context) {
	tick := time.NewTicker(BackgroundInterval)
	defer tick.Stop()
	for looks := 1; ; looks++ {
		if p.Progress != nil {
			p.Progress()
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-tick.C:
		}
		p.catchUp(ctx)
		for id, what := range p.owed.due() {
			p.giveBack(ctx, id, what)
		}
		if looks%trimEvery == 0 || p.crowded() {
			p.trim(ctx)
		}
	}
}

// poke wakes the goroutine that waits for c.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
