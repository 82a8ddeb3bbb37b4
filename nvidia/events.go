package nvidia

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/internal/periodic"
)

// eventSymbols are looked up first: go-nvml ends the process when it calls a function that the
// library lacks.
var eventSymbols = []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlDeviceRegisterEvents"}

type events struct {
	set   nvml.EventSet
	gpus  []GPU                  // registered GPUs
	uuids map[nvml.Device]string // by handle: a lost GPU can't be queried
}

// openEvents registers the GPUs with an event set. The error names the GPUs that are not in the
// set; without a set, none is.
func (r reader) openEvents(gpus []GPU) (*events, error) {
	for _, symbol := range eventSymbols {
		if !r.has(symbol) {
			return nil, check(theDriver, symbol, nvml.ERROR_FUNCTION_NOT_FOUND)
		}
	}
	set, ret := r.lib.EventSetCreate()
	if err := check(theDriver, "nvmlEventSetCreate", ret); err != nil {
		return nil, err
	}
	e := &events{set: set, gpus: gpus, uuids: map[nvml.Device]string{}}
	var failed error
	for _, gpu := range gpus {
		failed = errors.Join(failed, e.register(r.lib, gpu))
	}
	if len(e.uuids) == 0 {
		return nil, errors.Join(failed, e.close())
	}
	return e, failed
}

func (e *events) register(lib nvml.Interface, gpu GPU) error {
	what := gpu.Label()
	dev, ret := lib.DeviceGetHandleByIndex(gpu.Index)
	err := check(what, "nvmlDeviceGetHandleByIndex", ret)
	if err == nil {
		err = check(what, "nvmlDeviceRegisterEvents", dev.RegisterEvents(nvml.EventTypeXidCriticalError, e.set))
	}
	if err == nil {
		e.uuids[dev] = gpu.UUID
	}
	return err
}

type xid struct {
	uuid     string
	instance instance
	code     uint
}

// instance is the part of a GPU that an XID is about, by NVML's ids.
type instance struct {
	gpu, compute uint32
}

// allInstances is NVML's id for an error that is not limited to one instance.
const allInstances = 0xFFFFFFFF

func (e *events) wait(milliseconds uint32) (x xid, found bool, err error) {
	data, ret := e.set.Wait(milliseconds)
	if ret == nvml.ERROR_TIMEOUT {
		return xid{}, false, nil
	}
	if err := check(theDriver, "nvmlEventSetWait", ret); err != nil || data.EventType != nvml.EventTypeXidCriticalError {
		return xid{}, false, err
	}
	return xid{
		uuid:     e.uuids[data.Device],
		instance: instance{data.GpuInstanceId, data.ComputeInstanceId},
		code:     uint(data.EventData),
	}, true, nil
}

func (e *events) close() error {
	return check(theDriver, "nvmlEventSetFree", e.set.Free())
}

// eventWait limits one wait for an event. NVML's wait can't be interrupted, so it also delays a
// stop or a Refresh.
const eventWait = 200 * time.Millisecond

// watch waits for XIDs until the next reading. The first failed wait ends it: a GPU is lost, and
// the reading finds out which.
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
			periodic.Sleep(ctx, left)
		}
	}
}

// listenOnce: failed is true only for the first of several failures.
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
			c.log.Warn("waiting for GPU events failed: reading the GPUs now", "error", err)
		}
		if err := c.closeEvents(); err != nil {
			c.log.Warn("freeing the event set failed", "error", err)
		}
		return true, !again
	}
	c.broken = false
	if found {
		counts := c.tracker.critical(x, c.now())
		c.log.Warn("XID", "xid", x.code, "gpu", x.uuid, "gpuInstance", int32(x.instance.gpu), "computeInstance", int32(x.instance.compute), "ignored", !counts)
	}
	return true, false
}

func (c *Cache) settle() {
	c.tracker.settled(c.now())
	last := c.current.Load()
	c.publish(*last)
}

func (c *Cache) listenTo(gpus []GPU) {
	if !c.listen || len(gpus) == 0 || c.events != nil && sameGPUs(c.events.gpus, gpus) {
		return
	}
	err := c.closeEvents()
	if err == nil {
		c.events, err = c.reader.openEvents(gpus)
	}
	if err != nil && !c.silent {
		c.log.Warn("GPUs without events of critical errors: their health depends on readings only", "error", err)
	}
	c.silent = err != nil
}

func (c *Cache) closeEvents() error {
	if c.events == nil {
		return nil
	}
	e := c.events
	c.events = nil
	return e.close()
}

func (c *Cache) publish(next Snapshot) {
	last := c.current.Load()
	next.Health = c.tracker.health
	c.current.Store(&next)
	if maps.Equal(last.Health, next.Health) && reflect.DeepEqual(last.Node, next.Node) &&
		reflect.DeepEqual(last.Topology, next.Topology) && sameText(last.Err, next.Err) {
		return
	}
	c.logHealth(last.Health, next.Health)
	periodic.Wake(c.changed)
}

func sameText(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.Error() == b.Error()
}

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

func hostProc() fs.FS { return os.DirFS("/proc/driver/nvidia") }

// kernelGPUs returns the kernel module's list of GPUs. It changes when a GPU is bound to the driver
// or removed.
func kernelGPUs(proc fs.FS) func() string {
	return func() string {
		names, _ := fs.Glob(proc, "gpus/*")
		return strings.Join(names, " ")
	}
}
