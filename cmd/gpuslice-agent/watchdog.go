package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// stuckAfter limits one turn of a loop, in addition to its pause.
const stuckAfter = time.Minute

// watchdog makes /healthz fail when a loop hangs.
type watchdog struct {
	mu    sync.Mutex
	now   func() time.Time
	loops map[string]*progress
}

type progress struct {
	watchdog *watchdog
	limit    time.Duration
	began    time.Time
	waits    int
}

func newWatchdog() *watchdog { return &watchdog{now: time.Now, loops: map[string]*progress{}} }

func (w *watchdog) loop(name string, pause time.Duration) *progress {
	p := &progress{watchdog: w, limit: pause + stuckAfter}
	w.loops[name] = p
	return p
}

// tick records the start of a turn. A nil progress does nothing.
func (p *progress) tick() {
	if p == nil {
		return
	}
	p.watchdog.mu.Lock()
	defer p.watchdog.mu.Unlock()
	p.began = p.watchdog.now()
}

// waitForNVML stops the clock until done: if the driver hangs, a restart does not help, and /readyz
// reports it.
func (p *progress) waitForNVML() (done func()) {
	p.watchdog.mu.Lock()
	defer p.watchdog.mu.Unlock()
	p.waits++
	return func() {
		p.watchdog.mu.Lock()
		defer p.watchdog.mu.Unlock()
		p.waits--
		p.began = p.watchdog.now()
	}
}

func (w *watchdog) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(w.loops)) {
		p := w.loops[name]
		if age := w.now().Sub(p.began); !p.began.IsZero() && p.waits == 0 && age > p.limit {
			errs = append(errs, fmt.Errorf("the loop %q has made no progress for %v", name, age.Round(time.Second)))
		}
	}
	return errors.Join(errs...)
}
