package extender

import (
	"context"
	"sync"
	"time"
)

// reservations are those of filter that no bind has used. They expire earlier than the engine's,
// which cover a bind in progress.
type reservations struct {
	timeout time.Duration
	release func(podUID string)

	mu    sync.Mutex
	until map[string]time.Time
}

func newReservations(timeout time.Duration, release func(string)) *reservations {
	return &reservations{timeout: timeout, release: release, until: map[string]time.Time{}}
}

func (r *reservations) add(podUID string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until[podUID] = now.Add(r.timeout)
}

func (r *reservations) remove(podUID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.until, podUID)
}

// expire releases with the lock held, so that no bind starts with a reservation that is being
// released.
func (r *reservations) expire(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, until := range r.until {
		if now.After(until) {
			delete(r.until, uid)
			r.release(uid)
		}
	}
}

func (r *reservations) run(ctx context.Context) {
	ticker := time.NewTicker(max(r.timeout/10, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.expire(now)
		}
	}
}
