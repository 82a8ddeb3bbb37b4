package nriplugin

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

// staleLimits are claims with limits that can be older than the reservation, after a kill during a write. The
// background work updates them, because a container can delay access to its files.
type staleLimits struct {
	mu     sync.Mutex
	logged map[string]string // the last logged error by container ID
}

func (s *staleLimits) set(claims []ledger.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logged = make(map[string]string, len(claims))
	for _, c := range claims {
		s.logged[c.ContainerID] = ""
	}
}

func (s *staleLimits) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.logged))
}

// record records a result, and returns whether the error is new. Without an error the claim is done.
func (s *staleLimits) record(id string, err error) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.logged, id)
		return false
	}
	changed = s.logged[id] != err.Error()
	s.logged[id] = err.Error()
	return changed
}

func (p *Plugin) updateLimits(ctx context.Context) {
	for _, id := range p.stale.ids() {
		err := p.Ledger.Reapply(ctx, id, p.apply)
		if p.stale.record(id, err) {
			p.Log.Warn("failed to update the limits of a container; retrying", "id", id, "error", err)
		}
	}
}

func (p *Plugin) apply(dir string, claim ledger.Claim) error {
	return oci.ResizeOrPopulate(dir, claim, func(reason error) error {
		err := p.Populate(dir, claim)
		if err == nil {
			p.Log.Warn("limits of a container replaced", "id", claim.ContainerID, "reason", reason)
		}
		return err
	})
}
