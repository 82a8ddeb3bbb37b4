package nvidia

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// eventWait is the longest single wait for an event: NVML's wait can't be
// interrupted, so this is also how long a stop may take, or a Refresh by others.
const eventWait = 200 * time.Millisecond

// watch listens for XIDs until the time is come to read the node again. A wait that
// fails means that a GPU is lost: the first one ends the watch at once, so that the
// reading finds out which.
func (c *Cache) watch(ctx context.Context, until time.Time) {
	for ctx.Err() == nil {
		left := until.Sub(c.now())
		if left <= 0 {
			return
		}
		left = min(left, eventWait)
		switch listened, failed := c.listenOnce(left); {
		case failed:
			return
		case !listened:
			pause(ctx, left)
		}
	}
}

// pause waits, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// listenOnce waits for one event. It says whether there was anything to wait with,
// and whether waiting has newly failed.
func (c *Cache) listenOnce(d time.Duration) (listened, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.settle()
	if c.events == nil {
		return false, false
	}
	x, found, err := c.events.wait(uint32((d + time.Millisecond - 1) / time.Millisecond))
	if err != nil {
		again := c.broken
		c.broken = true
		if !again {
			c.log.Warn("waiting for events of the GPUs failed: they are read now", "error", err)
		}
		if err := c.closeEvents(); err != nil {
			c.log.Warn("the event set can't be freed", "error", err)
		}
		return true, !again
	}
	c.broken = false
	if found {
		counts := c.ward.critical(x, c.now())
		c.log.Warn("XID", "xid", x.code, "gpu", x.uuid, "gpuInstance", int32(x.instance.gpu), "computeInstance", int32(x.instance.compute), "ignored", !counts)
	}
	return true, false
}

// settle looks whether a GPU has become well meanwhile.
func (c *Cache) settle() {
	c.ward.settled(c.now())
	last := c.current.Load()
	c.publish(*last)
}

// listenTo has the GPUs report to an event set. Where they can't, that is said once.
func (c *Cache) listenTo(gpus []GPU) {
	if !c.listen || len(gpus) == 0 || c.events.covers(gpus) {
		return
	}
	err := c.closeEvents()
	if err == nil {
		c.events, err = c.reader.openEvents(gpus)
	}
	if err != nil && !c.silent {
		c.log.Warn("no events of critical errors from these GPUs: their health is what reading them tells", "error", err)
	}
	c.silent = err != nil
}

// covers says whether the set was made for just these GPUs.
func (e *events) covers(gpus []GPU) bool {
	return e != nil && slices.EqualFunc(e.gpus, gpus, func(a, b GPU) bool { return a.UUID == b.UUID })
}

// closeEvents frees the event set, if there is one.
func (c *Cache) closeEvents() error {
	if c.events == nil {
		return nil
	}
	e := c.events
	c.events = nil
	return e.close()
}

// publish makes a snapshot the current one, with the health as it is, and tells of
// what changed.
func (c *Cache) publish(next Snapshot) {
	last := c.current.Load()
	next.Health = c.ward.health
	c.current.Store(&next)
	if maps.Equal(last.Health, next.Health) && reflect.DeepEqual(last.Node, next.Node) &&
		reflect.DeepEqual(last.Topology, next.Topology) && sameText(last.Err, next.Err) {
		return
	}
	c.logHealth(last.Health, next.Health)
	c.subscribers.tell()
}

func sameText(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.Error() == b.Error()
}

// logHealth says which GPUs fell ill, or became well.
func (c *Cache) logHealth(last, next map[string]Health) {
	for _, uuid := range slices.Sorted(maps.Keys(next)) {
		h, before := next[uuid], last[uuid]
		switch {
		case h.Healthy && before.Reason != "":
			c.log.Info("GPU is healthy again", "gpu", uuid)
		case !h.Healthy && h.Reason != before.Reason:
			c.log.Error("GPU is unhealthy", "gpu", uuid, "reason", h.Reason)
		}
	}
}

// subscribers are those who want to know of changes.
type subscribers struct {
	mu       sync.Mutex
	channels map[chan struct{}]struct{}
}

func (s *subscribers) add() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels == nil {
		s.channels = map[chan struct{}]struct{}{}
	}
	s.channels[ch] = struct{}{}
	return ch, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.channels, ch)
	}
}

// tell never waits: who has not yet looked at the last value needs no other.
func (s *subscribers) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.channels {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// hostProc is where the kernel module lists its GPUs, one directory each by PCI address.
func hostProc() fs.FS { return os.DirFS("/proc/driver/nvidia") }

// kernelGPUs gives the kernel module's list of GPUs as one text, empty where there
// is none. It changes when a GPU is bound to the driver, or taken from it.
func kernelGPUs(proc fs.FS) func() string {
	return func() string {
		entries, err := fs.ReadDir(proc, "gpus")
		if err != nil {
			return ""
		}
		names := make([]string, 0, len(entries))
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return strings.Join(names, " ")
	}
}
