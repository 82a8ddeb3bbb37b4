package feedback

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/limiter"
)

// Hold is a container with work on a GPU without a pause, beyond its share, while others wait for theirs. A limiter of
// launches can't interrupt a kernel. Not one that has no limit.
type Hold struct {
	GPU, Container string
	Since          time.Time
	// Waiting are containers that lack time.
	Waiting []string
}

type HoldsConfig struct {
	// Peers reads the turn files, by GPU and container.
	Peers func(context.Context) (map[string]map[string]Peer, error)
	// Began is called once for each hold; optional.
	Began func(Hold)
	Log   *slog.Logger
}

// Holds finds holds. It does not need NVML, and does not wait for it.
type Holds struct {
	config  HoldsConfig
	seen    holds
	now     atomic.Pointer[[]Hold]
	problem logonce.Problem
}

func NewHolds(c HoldsConfig) *Holds { return &Holds{config: c} }

// Run looks once per second, or every LongestPause while no container wants a GPU, until ctx ends.
func (h *Holds) Run(ctx context.Context) {
	periodic.Vary(ctx, nil, func() time.Duration {
		peers, err := h.config.Peers(ctx)
		h.problem.Warn(h.config.Log, "kernels that hold a GPU are not found", err)
		if err == nil && h.look(limiter.Now(), time.Now(), peers) {
			return Step
		}
		return LongestPause
	})
}

// look reports whether a container wants a GPU.
func (h *Holds) look(now uint64, at time.Time, peers map[string]map[string]Peer) (wanted bool) {
	found := h.seen.step(now, at, peers)
	for _, hold := range found {
		known := slices.ContainsFunc(h.Now(), func(was Hold) bool { return was.GPU == hold.GPU && was.Container == hold.Container })
		if !known && h.config.Began != nil {
			h.config.Began(hold)
		}
	}
	h.now.Store(&found)
	for _, of := range peers {
		for _, t := range of {
			wanted = wanted || t.WantUntil > now
		}
	}
	return wanted
}

// Now returns the holds of the last look. It is safe for concurrent use.
func (h *Holds) Now() []Hold {
	if found := h.now.Load(); found != nil {
		return *found
	}
	return nil
}

const (
	// holdTime is the shortest hold that is reported.
	holdTime = 3 * time.Second
	// holdDebt is the least debt of a container that holds a GPU. With launches that can wait it is a few ms and a kernel.
	holdDebt = 300 * time.Millisecond
	// lackTime is the lag from which a container launches whatever the others have. It saves 80 ms at most (lag.h), and what a
	// kernel without an end takes is a credit.
	lackTime = 40 * time.Millisecond
	// restTime: a limiter publishes more often than that while its container has work.
	restTime = 100 * time.Millisecond
	// holdPart of the time is work, as far as it can be measured.
	holdPart = 0.95
)

// holds follow the turn files. Containers write them: a false one can hide its own hold, and can show that of another
// only while that has more than its share.
type holds map[string]map[string]heldTurn

type heldTurn struct {
	seen, busy uint64
	since      uint64 // 0: it paused
}

// step adds what was read at a time of CLOCK_MONOTONIC, by GPU and container.
func (h *holds) step(now uint64, at time.Time, peers map[string]map[string]Peer) (found []Hold) {
	next := make(holds, len(peers))
	for _, gpu := range slices.Sorted(maps.Keys(peers)) {
		of := peers[gpu]
		next[gpu] = make(map[string]heldTurn, len(of))
		for _, id := range slices.Sorted(maps.Keys(of)) {
			t := of[id]
			is := (*h)[gpu][id].next(now, t.Turn)
			next[gpu][id] = is
			if t.Free || is.since == 0 || now-is.since < uint64(holdTime) || t.Lag > -int64(holdDebt) {
				continue
			}
			if waiting := waitingFor(now, id, of); len(waiting) > 0 {
				found = append(found, Hold{GPU: gpu, Container: id, Since: at.Add(-time.Duration(now - is.since)), Waiting: waiting})
			}
		}
	}
	*h = next
	return found
}

// HoldsNow finds holds by one look. The containers have had the GPU for at least as long as their debts are.
func HoldsNow(now uint64, at time.Time, peers map[string]map[string]Peer) (found []Hold) {
	for _, gpu := range slices.Sorted(maps.Keys(peers)) {
		for _, id := range slices.Sorted(maps.Keys(peers[gpu])) {
			t := peers[gpu][id]
			debt := -max(t.Lag, -int64(math.MaxInt64))
			if t.Free || debt < int64(holdDebt) || t.WorkUntil > now+uint64(LongestPause) || t.WorkUntil+uint64(restTime) < now {
				continue
			}
			if waiting := waitingFor(now, id, peers[gpu]); len(waiting) > 0 {
				found = append(found, Hold{GPU: gpu, Container: id, Since: at.Add(-time.Duration(debt)), Waiting: waiting})
			}
		}
	}
	return found
}

func (was heldTurn) next(now uint64, t limiter.Turn) heldTurn {
	is := heldTurn{seen: now, busy: busyAt(now, t)}
	if was.seen == 0 || now <= was.seen || is.busy <= was.busy {
		return is
	}
	if float64(is.busy-was.busy) >= holdPart*float64(now-was.seen) {
		is.since = was.since
		if is.since == 0 {
			is.since = was.seen
		}
	}
	return is
}

// busyAt is the time in which the container had work.
func busyAt(now uint64, t limiter.Turn) uint64 {
	if work := min(t.WorkUntil, now); work > t.Looked { // it goes on since then
		return t.Busy + work - t.Looked
	}
	return t.Busy
}

func waitingFor(now uint64, holder string, of map[string]Peer) (waiting []string) {
	for _, id := range slices.Sorted(maps.Keys(of)) {
		if t := of[id]; id != holder && t.WantUntil > now && max(t.Lag, t.Credit) > int64(lackTime) {
			waiting = append(waiting, id)
		}
	}
	return waiting
}
