package extender

import (
	"context"
	"sync"
	"time"
)

// holds are the reservations that filter has made and no bind has taken up yet. They end
// sooner than the engine's own time, which is for a bind under way.
type holds struct {
	hold time.Duration
	drop func(podUID string)

	mu    sync.Mutex
	until map[string]time.Time
}

func newHolds(hold time.Duration, drop func(string)) *holds {
	return &holds{hold: hold, drop: drop, until: map[string]time.Time{}}
}

// put says that the pod waits for its bind from now on.
func (h *holds) put(podUID string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until[podUID] = now.Add(h.hold)
}

// take says that the pod's bind has come: its reservation is not given back by run any more.
func (h *holds) take(podUID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.until, podUID)
}

// expire gives back what has waited too long. It holds the lock meanwhile, so that no
// bind takes up what is just being given back.
func (h *holds) expire(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, until := range h.until {
		if now.After(until) {
			delete(h.until, uid)
			h.drop(uid)
		}
	}
}

func (h *holds) run(ctx context.Context) {
	ticker := time.NewTicker(max(h.hold/10, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			h.expire(now)
		}
	}
}
