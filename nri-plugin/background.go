package nriplugin

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
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

// trimEvery is the number of background turns between two checks of all usage files.
const trimEvery = 6

// almostFull returns whether less than a quarter of the state directory's file system is free, or it is
// not known.
func (p *Plugin) almostFull() bool {
	var fs unix.Statfs_t
	err := unix.Statfs(filepath.Dir(p.Ledger.Dir("any")), &fs)
	return err != nil || fs.Bavail < fs.Blocks/4
}

// trim restores the sizes of usage and turn files, which containers can extend to fill the node's memory.
func (p *Plugin) trim(ctx context.Context) {
	snapshot, err := p.Ledger.Snapshot(ctx)
	if err != nil {
		p.Log.Error("failed to check the files of containers", "error", err)
		return
	}
	byTurn := make(map[limiter.TurnID]ledger.Entry, len(snapshot.Entries))
	for _, e := range snapshot.Entries {
		byTurn[e.TurnID] = e
		trimmed, err := limiter.TrimUsage(limiter.UsagePath(p.Ledger.Dir(e.ContainerID)))
		switch {
		case trimmed:
			p.reportTrimmed(e, "usage file", nil)
		case err != nil:
			p.Log.Debug("failed to check a usage file", "id", e.ContainerID, "error", err)
		}
	}
	if err := p.Ledger.TrimTurns(func(_ string, id limiter.TurnID, err error) { p.reportTrimmed(byTurn[id], "turn file", err) }); err != nil {
		p.Log.Error("failed to check the turn files", "error", err)
	}
}

func (p *Plugin) reportTrimmed(e ledger.Entry, what string, failed error) {
	attributes := []any{"pod", e.PodNamespace + "/" + e.PodName, "container", e.Container, "id", e.ContainerID}
	if failed != nil {
		p.Log.Error("a container keeps its changed "+what+" from being restored", append(attributes, "error", failed)...)
	} else {
		p.Log.Warn("a container changed the size of its "+what+"; truncated", attributes...)
	}
	if p.Trimmed != nil && e.ContainerID != "" {
		p.Trimmed(e.ContainerID)
	}
}
