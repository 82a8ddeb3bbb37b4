package deviceplugin

import "sync"

// watched is a value that notifies readers of changes.
type watched[T any] struct {
	mu      sync.Mutex
	value   T
	changed chan struct{}
}

func newWatched[T any](value T) *watched[T] {
	return &watched[T]{value: value, changed: make(chan struct{})}
}

func (w *watched[T]) get() (T, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.value, w.changed
}

// set replaces the value and notifies readers.
func (w *watched[T]) set(value T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.value = value
	close(w.changed)
	w.changed = make(chan struct{})
}
