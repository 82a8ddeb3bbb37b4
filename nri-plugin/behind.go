package nriplugin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// behind holds the claims with limits that may be older than the reservation, because a
// process was killed in the middle of a resize or a write, and the error that was logged last
// for each. The background work writes their limits, not Synchronize: a container can delay
// access to its files.
type behind struct {
	mu   sync.Mutex
	said map[string]string
}

// set replaces the claims.
func (b *behind) set(claims []ledger.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = make(map[string]string, len(claims))
	for _, c := range claims {
		b.said[c.ContainerID] = ""
	}
}

func (b *behind) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.said))
}

// note records the result for a claim, and says whether the error is new. Without an error
// the claim is done.
func (b *behind) note(id string, err error) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.said, id)
		return false
	}
	changed = b.said[id] != err.Error()
	b.said[id] = err.Error()
	return changed
}

// catchUp sets the limits of containers to what is reserved.
func (p *Plugin) catchUp(ctx context.Context) {
	for _, id := range p.behind.ids() {
		err := p.Ledger.Reapply(ctx, id, p.apply)
		if p.behind.note(id, err) {
			p.Log.Warn("failed to update the limits of a container; retrying", "id", id, "error", err)
		}
	}
}

func (p *Plugin) apply(dir string, claim ledger.Claim) error {
	reason := oci.Resize(dir, claim)
	if !errors.Is(reason, limiter.ErrHalfWritten) && !errors.Is(reason, limiter.ErrForeign) {
		return reason
	}
	if err := p.Populate(dir, claim); err != nil {
		return err
	}
	p.Log.Warn("limits of a container replaced", "id", claim.ContainerID, "reason", reason)
	return nil
}
