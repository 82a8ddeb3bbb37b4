package nriplugin

import "sync"

// handlers counts handlers at work. Unlike a sync.WaitGroup it may be counted up from
// zero while somebody waits: requests come when they come.
type handlers struct {
	mu    sync.Mutex
	count int
	idle  chan struct{} // closed when the count is zero again; nil: nobody waits
}

func (h *handlers) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
}

func (h *handlers) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count--
	if h.count == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// wait returns when no handler is at work.
func (h *handlers) wait() {
	h.mu.Lock()
	if h.count == 0 {
		h.mu.Unlock()
		return
	}
	if h.idle == nil {
		h.idle = make(chan struct{})
	}
	idle := h.idle
	h.mu.Unlock()
	<-idle
}
