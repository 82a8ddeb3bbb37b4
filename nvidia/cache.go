package nvidia

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// DefaultInterval is how often a Cache reads the node.
const DefaultInterval = 30 * time.Second

// CacheOptions are what a Cache can be told.
type CacheOptions struct {
	// Interval is how often Run reads the node; 0 is DefaultInterval.
	Interval time.Duration
	// Events has Run listen for critical XIDs between the readings. Without it, or
	// where the driver has no events, a GPU's health is only what reading it tells.
	Events bool
	// Topology has the cache read how the GPUs are connected, whenever NVML is
	// opened and when the GPUs change.
	Topology bool
	// IgnoreXIDs are XIDs that say nothing about a GPU's health, besides those that
	// programs cause (13, 31, 43, 45, 68, 109).
	IgnoreXIDs []uint64
	// Settle is how long a GPU has to be well before it is Healthy again; 0 is
	// DefaultSettle.
	Settle time.Duration
	// Log is told of failures, of GPUs that come and go; nil is silence.
	Log *slog.Logger
}

// Snapshot is a node as it was read last.
type Snapshot struct {
	// Node is the last one that could be read; empty before the first.
	Node Node
	// Taken is when that was; zero before the first.
	Taken time.Time
	// Topology is how the GPUs are connected; empty unless it was asked for. It is
	// not to be changed.
	Topology Topology
	// Health is that of every GPU ever seen, by UUID, also of those that are gone.
	// It is not to be changed.
	Health map[string]Health
	// Err is why the newest attempt failed, nil if it didn't.
	Err error
}

// Cache holds the last snapshot of a node. Readers never wait and never call NVML;
// the goroutine in Run does, alone: NVML may hang with a GPU that hangs.
type Cache struct {
	reader   reader
	interval time.Duration
	listen   bool
	connect  bool
	log      *slog.Logger
	now      func() time.Time
	kernel   func() string

	current     atomic.Pointer[Snapshot]
	subscribers subscribers

	mu     sync.Mutex // held while NVML is called
	open   bool       // NVML is open
	opened string     // what the kernel listed then
	joined bool       // the topology was read since
	ward   *ward
	events *events // nil: none are to be had
	silent bool    // the last attempt at events failed, which was said
	broken bool    // the last wait for an event failed

	sampled map[string]uint64 // by GPU: the newest sample of process times that was read, microseconds
}

// NewCache makes an empty cache. Nothing is opened before Run or Refresh.
func NewCache(lib nvml.Interface, o CacheOptions) *Cache {
	c := &Cache{
		reader:   reader{lib: lib, numa: sysfsNUMA(hostSysfs())},
		interval: o.Interval,
		listen:   o.Events,
		connect:  o.Topology,
		log:      o.Log,
		now:      time.Now,
		kernel:   kernelGPUs(hostProc()),
	}
	if o.Settle <= 0 {
		o.Settle = DefaultSettle
	}
	c.ward = newWard(o.Settle, o.IgnoreXIDs)
	if c.interval <= 0 {
		c.interval = DefaultInterval
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.current.Store(&Snapshot{})
	return c
}

// Snapshot is what was read last.
func (c *Cache) Snapshot() Snapshot { return *c.current.Load() }

// Node is the last node that could be read. It is not to be changed.
func (c *Cache) Node() Node { return c.current.Load().Node }

// Health is that of a GPU; known is false for one that was never seen.
func (c *Cache) Health(uuid string) (h Health, known bool) {
	h, known = c.current.Load().Health[uuid]
	return h, known
}

// Subscribe gives a channel that gets a value after each change of the GPUs, of
// their health, or of the error. Changes in quick succession are one value. The
// channel is never closed; cancel ends it.
func (c *Cache) Subscribe() (changed <-chan struct{}, cancel func()) {
	return c.subscribers.add()
}

// Run reads the node at once and then at every interval, until the context ends;
// then it closes NVML. In between it listens for XIDs. It has one owner, which waits
// for it.
func (c *Cache) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_ = c.Refresh(ctx) // the snapshot has its error
		c.watch(ctx, c.now().Add(c.interval))
	}
	return c.Close()
}

// Refresh reads the node now. Where that fails the last node stays, and the
// snapshot has the error. NVML is opened when it isn't, and closed after a failure,
// so that a driver that comes later, or again, is found. It is also opened again while
// a GPU is missing, and when the kernel's list of GPUs has changed: NVML lists the
// GPUs when it is opened, and never again.
func (c *Cache) Refresh(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	last := c.current.Load()
	node, err := c.read(ctx)
	switch {
	case ctx.Err() != nil:
		return errors.Join(err, ctx.Err())
	case err != nil:
		c.ward.unreadable(err, c.now())
		c.logFailure(last.Err, err)
		c.publish(Snapshot{Node: last.Node, Taken: last.Taken, Topology: last.Topology, Err: err})
		return err
	}
	topology := c.topology(last, node)
	c.ward.seen(node, c.now())
	c.logChanges(last.Node, node)
	c.publish(Snapshot{Node: node, Taken: c.now(), Topology: topology})
	c.listenTo(node.GPUs)
	return nil
}

// Close closes NVML if it is open. Refresh opens it again.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.close()
}

// read opens NVML where needed and reads the node.
func (c *Cache) read(ctx context.Context) (Node, error) {
	kernel := c.kernel()
	if c.open && (c.ward.missing() || kernel != c.opened) {
		if err := c.close(); err != nil {
			return Node{}, err
		}
	}
	if !c.open {
		if err := c.reader.open(); err != nil {
			return Node{}, err
		}
		c.open, c.opened = true, kernel
	}
	node, err := c.reader.read(ctx)
	if err != nil {
		return Node{}, errors.Join(err, c.close())
	}
	return node, nil
}

// topology reads how the GPUs are connected if that isn't known, and gives the last
// that is.
func (c *Cache) topology(last *Snapshot, node Node) Topology {
	if !c.connect || (c.joined && sameGPUs(last.Node, node)) {
		return last.Topology
	}
	t, err := c.reader.topology()
	if err != nil {
		c.log.Warn("how the GPUs are connected can't be read", "error", err)
		return last.Topology
	}
	c.joined = true
	return t
}

func sameGPUs(a, b Node) bool {
	return slices.EqualFunc(a.GPUs, b.GPUs, func(x, y GPU) bool { return x.UUID == y.UUID })
}

// close closes NVML once, and the events with it.
func (c *Cache) close() error {
	if !c.open {
		return nil
	}
	c.open, c.joined = false, false
	return errors.Join(c.closeEvents(), c.reader.close())
}

// logFailure says a failure once, not at every interval.
func (c *Cache) logFailure(last, err error) {
	if last == nil || last.Error() != err.Error() {
		c.log.Error("GPUs can't be read", "error", err)
	}
}

// logChanges says which GPUs came, went, or failed.
func (c *Cache) logChanges(last, node Node) {
	for _, gpu := range node.GPUs {
		if _, known := last.GPU(gpu.UUID); !known {
			c.log.Info("GPU found", "gpu", gpu.UUID, "index", gpu.Index, "model", gpu.Model, "memoryMiB", gpu.MemoryMiB)
		}
	}
	for _, gpu := range last.GPUs {
		if _, known := node.GPU(gpu.UUID); !known {
			c.log.Warn("GPU gone", "gpu", gpu.UUID, "model", gpu.Model)
		}
	}
	c.logMIG(node, last, "MIG device found")
	c.logMIG(last, node, "MIG device gone")
	known := map[string]bool{}
	for _, f := range last.Faults {
		known[f.Message] = true
	}
	for _, f := range node.Faults {
		if !known[f.Message] {
			c.log.Error("GPU can't be read", "gpu", f.UUID, "index", f.Index, "error", f.Err)
		}
	}
}

// logMIG says which MIG devices one node has and another doesn't.
func (c *Cache) logMIG(has, lacks Node, message string) {
	for _, d := range devices(has.GPUs) {
		if _, _, both := lacks.MIGDevice(d.UUID); !both {
			c.log.Info(message, "gpu", d.GPU, "mig", d.UUID, "profile", d.Profile, "memoryMiB", d.MemoryMiB)
		}
	}
}
