package ociruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// otherContextMiB is what a CUDA context is expected to take where nobody has said:
// rather too much than too little.
const otherContextMiB = 520

// GPUs is what a node has to share.
type GPUs struct {
	// Capacity is what may be booked of each GPU, by UUID.
	Capacity map[string]grant.GPU
	// Indices are NVML's indices by UUID: "0", and "0:1" of a MIG device.
	Indices map[string]string
	// ContextMiB is what a context of each is expected to take.
	ContextMiB map[string]int64
	// Oversubscription is how much more of a GPU's memory is granted than it has.
	Oversubscription map[string]float64
}

// nodeFile is what is read of node.json, which the agent writes (monitor/node) and
// `gpuslice GPUs` prints. That package knows NVML, which this program does without.
type nodeFile struct {
	Version   int          `json:"version"`
	WrittenAt time.Time    `json:"writtenAt"`
	BootID    string       `json:"bootID"`
	Devices   []nodeDevice `json:"devices"`
	Node      struct {
		GPUs []nodeGPU `json:"gpus"`
	} `json:"node"`
	ContextMiB map[string]int64 `json:"contextMiB"`
}

type nodeDevice struct {
	UUID        string `json:"uuid"`
	GPU         string `json:"gpu"`
	MemoryMiB   int64  `json:"memoryMiB"`
	CorePercent int    `json:"cores"`
	Slots       int    `json:"slots"`
}

type nodeGPU struct {
	UUID      string    `json:"uuid"`
	Index     int       `json:"index"`
	MemoryMiB int64     `json:"memoryMiB"`
	MIG       []nodeMIG `json:"mig"`
}

type nodeMIG struct {
	UUID string `json:"uuid"`
}

// nodeFileVersion is that of monitor/node.
const nodeFileVersion = 2

// decodeNode reads a node.json.
func decodeNode(data []byte) (nodeFile, error) {
	var f nodeFile
	if err := json.Unmarshal(data, &f); err != nil {
		return f, err
	}
	if f.Version != nodeFileVersion {
		return f, fmt.Errorf("its version is %d, and this program knows %d: install gpuslice's programs of one version", f.Version, nodeFileVersion)
	}
	return f, nil
}

// GPUs is what the file says.
func (f nodeFile) gpus() GPUs {
	c := GPUs{
		Capacity: map[string]grant.GPU{}, Indices: map[string]string{},
		ContextMiB: map[string]int64{}, Oversubscription: map[string]float64{},
	}
	memory := map[string]int64{}
	for _, gpu := range f.Node.GPUs {
		memory[gpu.UUID] = gpu.MemoryMiB
		c.Indices[gpu.UUID] = strconv.Itoa(gpu.Index)
		for i, d := range gpu.MIG { // in NVML's order
			c.Indices[d.UUID] = fmt.Sprintf("%d:%d", gpu.Index, i)
		}
	}
	for _, d := range f.Devices {
		capacity := grant.GPU{UUID: d.UUID, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent, Slots: d.Slots}
		if d.GPU != d.UUID {
			capacity.Parent = d.GPU
		}
		c.Capacity[d.UUID] = capacity
		if c.ContextMiB[d.UUID] = f.ContextMiB[d.UUID]; c.ContextMiB[d.UUID] == 0 {
			c.ContextMiB[d.UUID] = otherContextMiB
		}
		if has := memory[d.UUID]; has > 0 && d.MemoryMiB > has {
			c.Oversubscription[d.UUID] = float64(d.MemoryMiB) / float64(has)
		}
	}
	return c
}

// writtenSince says whether the file is of this run of the machine. Older agents don't
// write the boot's id, and the clock may have been set since.
func (f nodeFile) writtenSince(boot bootState) bool {
	if f.BootID != "" {
		return f.BootID == boot.ID
	}
	return f.WrittenAt.After(boot.Since)
}

// Inventory finds out the node's GPUs without asking the driver each time.
type Inventory struct {
	// NodePath is the agent's account of the GPUs. It counts if it is of this run of
	// the machine.
	NodePath string
	// CachePath is where what Ask said is kept, for as long as the machine and the driver
	// run.
	CachePath string
	// Ask asks the driver, and answers with what node.json holds.
	Ask func(ctx context.Context) ([]byte, error)

	// boot identifies this run of the machine and its driver; nil: the host's.
	boot func() (bootState, error)
}

// bootState is what has to be the same for the GPUs to be.
type bootState struct {
	// ID is the kernel's boot_id, and Since when it booted.
	ID    string    `json:"bootID"`
	Since time.Time `json:"-"`
	// Driver is the kernel module's version, and GPUs the GPUs and MIG devices it has.
	Driver string `json:"driver"`
	GPUs   string `json:"gpus"`
}

// gpuCache is the cache's file.
type gpuCache struct {
	bootState
	Node json.RawMessage `json:"node"`
}

// GPUs answers with the agent's account, the cache's, or the driver's.
func (i Inventory) GPUs(ctx context.Context) (GPUs, error) {
	bootOf := i.boot
	if bootOf == nil {
		bootOf = hostBoot
	}
	boot, err := bootOf()
	if err != nil {
		return GPUs{}, fmt.Errorf("find out the node's GPUs: %w", err)
	}
	data, err := os.ReadFile(i.NodePath)
	if err == nil {
		f, err := decodeNode(data)
		if err != nil {
			return GPUs{}, fmt.Errorf("read the agent's account of the GPUs %s: %w", i.NodePath, err)
		}
		if f.writtenSince(boot) {
			return f.gpus(), nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return GPUs{}, fmt.Errorf("read the agent's account of the GPUs: %w", err)
	}
	if c, ok := i.cached(boot); ok {
		return c, nil
	}
	return i.ask(ctx, boot)
}

// cached is what the cache says. One that is damaged or of another boot says nothing.
func (i Inventory) cached(boot bootState) (GPUs, bool) {
	data, err := os.ReadFile(i.CachePath)
	if err != nil {
		return GPUs{}, false
	}
	var cache gpuCache
	if json.Unmarshal(data, &cache) != nil || cache.ID != boot.ID || cache.Driver != boot.Driver || cache.GPUs != boot.GPUs {
		return GPUs{}, false
	}
	f, err := decodeNode(cache.Node)
	return f.gpus(), err == nil
}

// ask asks the driver: one process at a time, for it may take seconds.
func (i Inventory) ask(ctx context.Context, boot bootState) (GPUs, error) {
	if err := os.MkdirAll(filepath.Dir(i.CachePath), 0o711); err != nil {
		return GPUs{}, fmt.Errorf("find out the node's GPUs: %w", err)
	}
	lock, err := i.lock(ctx)
	if err != nil {
		return GPUs{}, fmt.Errorf("find out the node's GPUs: wait for another process that asks the driver: %w", err)
	}
	defer lock.Close()
	if c, ok := i.cached(boot); ok { // the other one has asked
		return c, nil
	}
	data, err := i.Ask(ctx)
	if err != nil {
		return GPUs{}, fmt.Errorf("find out the node's GPUs, as no gpuslice-agent says them: %w", err)
	}
	f, err := decodeNode(data)
	if err != nil {
		return GPUs{}, fmt.Errorf("find out the node's GPUs: %w", err)
	}
	if len(f.Devices) > 0 { // none: the driver may come yet
		if err := i.save(gpuCache{boot, data}); err != nil {
			return GPUs{}, fmt.Errorf("keep what the driver says of the GPUs: %w", err)
		}
	}
	return f.gpus(), nil
}

// lock takes the lock of the cache. Closing the file releases it.
func (i Inventory) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(i.CachePath+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := rawfile.Lock(ctx, int(f.Fd())); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// save writes the cache, under the lock.
func (i Inventory) save(cache gpuCache) error {
	data, err := json.Marshal(cache)
	if err != nil {
		return err
	}
	return atomicfile.Write(i.CachePath, data, 0o600)
}

// hostBoot is this machine's.
func hostBoot() (bootState, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return bootState{}, err
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return bootState{}, fmt.Errorf("ask how long the machine runs: %w", err)
	}
	driver, _ := os.ReadFile("/sys/module/nvidia/version") // a simulated driver has none
	gpus, _ := filepath.Glob("/proc/driver/nvidia/gpus/*")
	mig, _ := filepath.Glob("/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*")
	return bootState{
		ID:     string(bytes.TrimSpace(id)),
		Since:  time.Now().Add(-time.Duration(up.Nano())),
		Driver: string(bytes.TrimSpace(driver)),
		GPUs:   strings.Join(append(gpus, mig...), " "),
	}, nil
}
