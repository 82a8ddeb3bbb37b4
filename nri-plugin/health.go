package nriplugin

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

type health struct {
	mu       sync.Mutex
	now      func() time.Time
	state    string // why the plugin is not ready, or empty
	timeout  time.Duration
	inFlight map[*work]struct{}
}

type work struct {
	container string
	since     time.Time
}

const notConnected = "not connected to the container runtime's NRI socket"

func (h *health) set(state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = state
}

func (h *health) setTimeout(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timeout = d
}

// begin records the start of work for a container. The returned function records the end.
func (h *health) begin(id string) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inFlight == nil {
		h.inFlight = map[*work]struct{}{}
	}
	w := &work{id, h.now()}
	h.inFlight[w] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.inFlight, w)
	}
}

// Ready returns nil while the plugin is connected and its ledger is reconciled with the runtime's containers.
func (p *Plugin) Ready() error {
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	if p.health.state != "" {
		return errors.New(p.health.state)
	}
	return nil
}

// Live returns an error when a handler runs for more than twice the runtime's timeout, long after its
// request was refused: only a restart fixes that.
func (p *Plugin) Live() error {
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	if p.health.timeout == 0 {
		return nil
	}
	for w := range p.health.inFlight {
		if age := p.health.now().Sub(w.since); age > 2*p.health.timeout {
			return fmt.Errorf("a handler for container %s has run for %v", w.container, age)
		}
	}
	return nil
}
