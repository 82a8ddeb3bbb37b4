package deviceplugin

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/internal/periodic"
)

type GPU struct {
	UUID    string
	Healthy bool
	// NUMANode is the nearest NUMA node, or nvidia.NUMAUnknown.
	NUMANode int
	Devices  int
}

// Inventory has the GPUs of a resource. It has one writer and any number of readers.
type Inventory struct {
	gpus *watched[[]GPU]
}

func NewInventory() *Inventory { return &Inventory{newWatched[[]GPU](nil)} }

// GPUs returns the GPUs by UUID, read-only, and a channel that is closed when they change.
func (i *Inventory) GPUs() ([]GPU, <-chan struct{}) { return i.gpus.get() }

// Set replaces the GPUs and notifies readers of a change.
func (i *Inventory) Set(gpus []GPU) {
	sorted := slices.SortedFunc(slices.Values(gpus), func(a, b GPU) int { return cmp.Compare(a.UUID, b.UUID) })
	if last, _ := i.gpus.get(); !slices.Equal(sorted, last) {
		i.gpus.set(sorted)
	}
}

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

const (
	pollInterval = 500 * time.Millisecond
	// interruption is the time without a connection after which the devices are unhealthy.
	// Meanwhile pods get no GPU, because Allocate grants nothing.
	interruption = 5 * time.Second
)

// Connection reports whether the agent is connected to the container runtime, and ignores short
// interruptions. It starts as not connected.
type Connection struct {
	ready     func() error
	admission func(context.Context)
	log       *slog.Logger
	seen      time.Time

	mu        sync.Mutex // held to change both
	connected *watched[bool]
	healthy   *watched[bool]
}

// NewConnection uses ready, which returns nil while the agent is connected, and admission, which returns when the
// kubelet has admitted the pods that schedulers bound before they read that the agent is not connected. admission can be
// nil.
func NewConnection(ready func() error, admission func(context.Context), log *slog.Logger) *Connection {
	return &Connection{ready: ready, admission: admission, log: log, connected: newWatched(false), healthy: newWatched(false)}
}

// Connected is for schedulers. It also returns a channel that is closed when the state changes.
func (c *Connection) Connected() (bool, <-chan struct{}) { return c.connected.get() }

// Healthy is for the kubelet. It ends later than Connected: the kubelet fails pods for good that it admits without a
// healthy device.
func (c *Connection) Healthy() (bool, <-chan struct{}) { return c.healthy.get() }

// Run polls until ctx ends. Only one goroutine may call it.
func (c *Connection) Run(ctx context.Context) {
	var withdrawing sync.WaitGroup
	defer withdrawing.Wait()
	withdrawing.Go(func() { c.withdrawEach(ctx) })
	periodic.Vary(ctx, nil, func() time.Duration {
		c.look(time.Now())
		return pollInterval
	})
}

func (c *Connection) look(now time.Time) {
	was, _ := c.connected.get()
	err := c.ready()
	switch {
	case err == nil:
		c.seen = now
		if !was {
			c.log.Info("connected to the container runtime: GPUs are offered")
			c.mu.Lock()
			defer c.mu.Unlock()
			c.healthy.set(true)
			c.connected.set(true)
		}
	case was && now.Sub(c.seen) >= interruption:
		c.log.Warn("not connected to the container runtime: GPUs are reported as unhealthy", "error", err)
		c.connected.set(false)
		if c.admission == nil {
			c.withdraw()
		}
	}
}

// withdrawEach withdraws the devices after each end of the connection.
func (c *Connection) withdrawEach(ctx context.Context) {
	for ctx.Err() == nil {
		connected, changed := c.connected.get()
		if healthy, _ := c.healthy.get(); healthy && !connected && c.admission != nil {
			c.wait(ctx, changed)
			select {
			case <-changed:
			default:
				c.withdraw()
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// wait waits for the admission until the connection changes.
func (c *Connection) wait(ctx context.Context, changed <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-ctx.Done():
		case <-changed:
			cancel()
		}
	})
	c.admission(ctx)
}

func (c *Connection) withdraw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if connected, _ := c.connected.get(); !connected {
		c.healthy.set(false)
	}
}
