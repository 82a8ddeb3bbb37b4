package nriplugin

import "sync"

// handlers counts handlers that run. A sync.WaitGroup must not be increased from zero while wait waits.
type handlers struct {
	mu    sync.Mutex
	count int
	idle  chan struct{} // closed when the count is zero; nil: no wait
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
