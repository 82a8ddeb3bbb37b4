// Package periodic repeats work until a context ends.
package periodic

import (
	"context"
	"time"
)

// Every calls work after each interval, and when wake, which can be nil, is sent to. Work that takes longer than the
// interval delays the next.
func Every(ctx context.Context, interval time.Duration, wake <-chan struct{}, work func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-tick.C:
		}
		work()
	}
}

// Vary calls work now, and again after the pause that work returns or when wake, which can be nil, is sent to.
func Vary(ctx context.Context, wake <-chan struct{}, work func() (pause time.Duration)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-time.After(work()):
		}
	}
}

// Wake sends to a channel with a place for one value, if it is empty.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Sleep waits, and returns false if the context ends first.
func Sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}
