package nriplugin

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/internal/periodic"
)

// BackgroundInterval is the time between two turns of the background work.
const BackgroundInterval = 5 * time.Second

type ending int

const (
	release ending = iota + 1
	remove
)

// pendingReleases are claims that could not be released or removed. The runtime reports an end once, so the
// background work retries; after a restart, Synchronize finds them.
type pendingReleases struct {
	mu   sync.Mutex
	byID map[string]ending
}

func (r *pendingReleases) add(id string, how ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]ending{}
	}
	r.byID[id] = max(r.byID[id], how)
}

func (r *pendingReleases) done(id string, how ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if how >= r.byID[id] {
		delete(r.byID, id)
	}
}

func (r *pendingReleases) all() map[string]ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.byID)
}

func (p *Plugin) endClaimBeforeDeadline(ctx context.Context, id string, how ending) {
	defer p.health.begin(id)()
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, innerDeadline(time.Now(), deadline))
		defer cancel()
	}
	p.endClaim(ctx, id, how)
}

func (p *Plugin) endClaim(ctx context.Context, id string, how ending) {
	end := p.Ledger.Release
	if how == remove {
		end = p.Ledger.Remove
	}
	if err := end(ctx, id); err != nil {
		p.Log.Error("failed to release a claim; retrying", "id", id, "error", err)
		p.pending.add(id, how)
		return
	}
	p.pending.done(id, how)
}

// background runs until ctx ends: it retries releases, updates limits, and truncates usage files.
func (p *Plugin) background(ctx context.Context) {
	progress := p.Progress
	if progress == nil {
		progress = func() {}
	}
	progress()
	turn := 0
	periodic.Every(ctx, BackgroundInterval, p.wake, func() {
		p.updateLimits(ctx)
		for id, how := range p.pending.all() {
			p.endClaim(ctx, id, how)
		}
		if turn++; turn%trimEvery == 0 || p.almostFull() {
			p.trim(ctx)
		}
		progress()
	})
}

func (p *Plugin) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
