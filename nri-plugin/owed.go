package nriplugin

import (
	"context"
	"sync"
	"time"
)

// owedInterval is how often what could not be given back is tried again.
const owedInterval = 5 * time.Second

// giveBackFunc is the ledger's Release or Remove.
type giveBackFunc func(ctx context.Context, id string) error

// owed are claims that could not be given back when the runtime said so: the
// state folder was full or read-only, the lock was taken for too long. The runtime
// says it once, so they are remembered and tried again. What is forgotten by a
// restart is found by the next Synchronize.
type owed struct {
	mu   sync.Mutex
	byID map[string]giveBackFunc
}

// giveBack releases or removes a claim, now or later. It never fails the
// runtime's event: the container is gone in any case.
func (p *Plugin) giveBack(ctx context.Context, id string, do giveBackFunc) {
	err := do(ctx, id)
	p.owed.mu.Lock()
	defer p.owed.mu.Unlock()
	if err == nil {
		delete(p.owed.byID, id)
		return
	}
	p.Log.Error("claim not given back; it is tried again", "id", id, "error", err)
	if p.owed.byID == nil {
		p.owed.byID = map[string]giveBackFunc{}
	}
	p.owed.byID[id] = do
}

// payOwed tries again until ctx ends.
func (p *Plugin) payOwed(ctx context.Context) {
	tick := time.NewTicker(owedInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.owed.mu.Lock()
		due := make(map[string]giveBackFunc, len(p.owed.byID))
		for id, do := range p.owed.byID {
			due[id] = do
		}
		p.owed.mu.Unlock()
		for id, do := range due {
			p.giveBack(ctx, id, do)
		}
	}
}
