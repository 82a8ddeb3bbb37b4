package nvidia

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// DefaultInterval of a Cache.
const DefaultInterval = 30 * time.Second

type CacheOptions struct {
	Interval time.Duration
	// Events makes Run wait for critical XIDs between the readings. Without it, only failed
	// readings make a GPU unhealthy.
	Events bool
	// Topology makes the cache read the connections of the GPUs when NVML is opened and when the
	// GPUs change.
	Topology bool
	// Profiles makes the cache read MIG profiles and GPU instances, which needs root.
	Profiles bool
	// IgnoreXIDs do not affect a GPU's health, in addition to XIDs of applications (13, 31, 43, 45,
	// 68, 109).
	IgnoreXIDs []uint
	// Settle is the time without a fault before a GPU is healthy again; 0 is DefaultSettle.
	Settle time.Duration
	Log    *slog.Logger
}

// Snapshot is the result of the last reading. Callers must not change it.
type Snapshot struct {
	Node     Node
	Taken    time.Time
	Topology Topology
	// Health is by UUID, including GPUs that are gone.
	Health map[string]Health
	Err    error
}

// Cache holds the last snapshot of a node. Readers never wait: only Run's goroutine calls NVML,
// which can hang with a GPU that hangs.
type Cache struct {
	reader   reader
	interval time.Duration
	listen   bool
	connect  bool
	log      *slog.Logger
	now      func() time.Time
	kernel   func() string

	current atomic.Pointer[Snapshot]
	changed chan struct{}

	mu      sync.Mutex // held during calls of NVML
	open    bool
	opened  string // the kernel's list of GPUs at that time
	joined  bool
	tracker *tracker
	events  *events // nil: not available
	silent  bool    // the last attempt to open events failed and was logged
	broken  bool

	timing  map[string]timing
	sources atomic.Pointer[map[string]TimeSource]
}

// NewCache returns an empty cache. NVML is opened by Run or Refresh.
func NewCache(lib nvml.Interface, o CacheOptions) *Cache {
	c := &Cache{
		reader:   reader{lib: lib, numa: sysfsNUMA(hostSysfs()), info: processesInfo, profiles: o.Profiles},
		interval: cmp.Or(max(o.Interval, 0), DefaultInterval),
		listen:   o.Events,
		connect:  o.Topology,
		log:      cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		now:      time.Now,
		kernel:   kernelGPUs(hostProc()),
		changed:  make(chan struct{}, 1),
		timing:   map[string]timing{},
		tracker:  newTracker(cmp.Or(max(o.Settle, 0), DefaultSettle), o.IgnoreXIDs),
	}
	c.current.Store(&Snapshot{})
	c.sources.Store(&map[string]TimeSource{})
	return c
}

func (c *Cache) Snapshot() Snapshot { return *c.current.Load() }

// Node returns the last node that was read. Callers must not change it.
func (c *Cache) Node() Node { return c.current.Load().Node }

// Changed receives a value after one or more changes. It is for one reader.
func (c *Cache) Changed() <-chan struct{} { return c.changed }

// Run reads the node at every interval and waits for XIDs, until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_ = c.Refresh(ctx) // the snapshot has its error
		c.watch(ctx, c.now().Add(c.interval))
	}
	return c.Close()
}

// Refresh reads the node now. On an error the last node stays. It opens NVML again after a failure, while a
// GPU is missing, and when the kernel's list changes: NVML lists GPUs only when it is opened.
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
		c.tracker.unreadable(err, c.now())
		if !sameText(last.Err, err) {
			c.log.Error("reading the GPUs failed", "error", err)
		}
		c.publish(Snapshot{Node: last.Node, Taken: last.Taken, Topology: last.Topology, Err: err})
		return err
	}
	topology := c.topology(last, node)
	c.tracker.seen(node, c.now())
	c.logChanges(last.Node, node)
	c.publish(Snapshot{Node: node, Taken: c.now(), Topology: topology})
	c.listenTo(node.GPUs)
	return nil
}

// Close closes NVML. Refresh opens it again.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.close()
}

func (c *Cache) read(ctx context.Context) (Node, error) {
	kernel := c.kernel()
	if c.open && (c.tracker.missing() || kernel != c.opened) {
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

func (c *Cache) topology(last *Snapshot, node Node) Topology {
	if !c.connect || (c.joined && sameGPUs(last.Node.GPUs, node.GPUs)) {
		return last.Topology
	}
	t, err := c.reader.topology()
	if err != nil {
		c.log.Warn("reading the GPU topology failed", "error", err)
		return last.Topology
	}
	c.joined = true
	return t
}

func sameGPUs(a, b []GPU) bool {
	return slices.EqualFunc(a, b, func(x, y GPU) bool { return x.UUID == y.UUID })
}

func (c *Cache) close() error {
	if !c.open {
		return nil
	}
	c.open, c.joined = false, false
	return errors.Join(c.closeEvents(), c.reader.close())
}

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
	for _, f := range node.Faults {
		if !slices.ContainsFunc(last.Faults, func(l Fault) bool { return l.Message == f.Message }) {
			c.log.Error("reading a GPU failed", "gpu", f.UUID, "index", f.Index, "error", f.Err)
		}
	}
}

func (c *Cache) logMIG(has, lacks Node, message string) {
	for _, d := range devices(has.GPUs) {
		if _, _, both := lacks.MIGDevice(d.UUID); !both {
			c.log.Info(message, "gpu", d.GPU, "mig", d.UUID, "profile", d.Profile, "memoryMiB", d.MemoryMiB)
		}
	}
}
