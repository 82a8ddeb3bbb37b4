package ociruntime

import (
	"bytes"
	"cmp"
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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// otherContextMiB is a high estimate for an unknown GPU.
const otherContextMiB = 520

// GPUs are the node's GPUs. The maps are by UUID.
type GPUs struct {
	Capacity map[string]grant.GPU
	// Indices are NVML's: "0", and "0:1" for a MIG device.
	Indices map[string]string
	// ContextMiB is the memory of a CUDA context.
	ContextMiB map[string]int64
	// Oversubscription is the grantable memory as a multiple of the GPU's.
	Oversubscription map[string]float64
	// None is why there is no GPU; empty if there are some.
	None string
}

// nodeFile is a part of node.json (package monitor/node, which imports NVML).
type nodeFile struct {
	Version   int              `json:"version"`
	WrittenAt time.Time        `json:"writtenAt"`
	BootID    string           `json:"bootID"`
	Devices   []api.NodeDevice `json:"devices"`
	Node      struct {
		GPUs []struct {
			UUID      string `json:"uuid"`
			Index     int    `json:"index"`
			MemoryMiB int64  `json:"memoryMiB"`
			MIG       []struct {
				UUID string `json:"uuid"`
			} `json:"mig"`
		} `json:"gpus"`
	} `json:"node"`
	ContextMiB map[string]int64 `json:"contextMiB"`
}

func decodeNode(data []byte) (nodeFile, error) {
	var f nodeFile
	if err := json.Unmarshal(data, &f); err != nil {
		return f, err
	}
	if f.Version != api.NodeFileVersion {
		return f, fmt.Errorf("version %d is not supported, only %d: install all gpuslice programs in one version", f.Version, api.NodeFileVersion)
	}
	return f, nil
}

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
		c.Capacity[d.UUID] = grant.GPUOf(d)
		c.ContextMiB[d.UUID] = cmp.Or(f.ContextMiB[d.UUID], otherContextMiB)
		if has := memory[d.UUID]; has > 0 && d.MemoryMiB > has {
			c.Oversubscription[d.UUID] = float64(d.MemoryMiB) / float64(has)
		}
	}
	return c
}

// writtenSince prefers the boot ID, because the clock can be changed.
func (f nodeFile) writtenSince(boot bootState) bool {
	if f.BootID != "" {
		return f.BootID == boot.ID
	}
	return f.WrittenAt.After(boot.Since)
}

// Inventory lists the node's GPUs without a query to the driver each time.
type Inventory struct {
	// NodePath is the agent's node.json.
	NodePath string
	// CachePath caches the result of Query, for one bootState.
	CachePath string
	// Query queries the driver and returns a node.json.
	Query func(ctx context.Context) ([]byte, error)

	boot func() (bootState, error) // nil is hostBoot
}

// bootState identifies a boot with its driver and GPUs.
type bootState struct {
	ID     string    `json:"bootID"` // the kernel's boot_id
	Since  time.Time `json:"-"`
	Driver string    `json:"driver"`
	GPUs   string    `json:"gpus"`
}

type gpuCache struct {
	bootState
	Node json.RawMessage `json:"node"`
}

func (i Inventory) GPUs(ctx context.Context) (GPUs, error) {
	bootOf := i.boot
	if bootOf == nil {
		bootOf = hostBoot
	}
	boot, err := bootOf()
	if err != nil {
		return GPUs{}, fmt.Errorf("list the node's GPUs: %w", err)
	}
	data, err := os.ReadFile(i.NodePath)
	if err == nil {
		f, err := decodeNode(data)
		if err != nil {
			return GPUs{}, fmt.Errorf("read the agent's list of the GPUs %s: %w", i.NodePath, err)
		}
		if f.writtenSince(boot) {
			c := f.gpus()
			if len(c.Capacity)+len(f.Node.GPUs) == 0 { // the driver can be loaded since, or this query loads it
				if asked, err := i.driver(ctx, boot); err == nil && len(asked.Capacity) > 0 {
					return asked, nil
				}
			}
			if len(c.Capacity) == 0 {
				c.None = fmt.Sprintf("the list that gpuslice-agent wrote at %s, %s, has none; if the agent runs, gpuslice status prints the reason; if it does not run on this machine any more, remove the file",
					f.WrittenAt.UTC().Format(time.RFC3339), i.NodePath)
			}
			return c, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return GPUs{}, fmt.Errorf("read the agent's list of the GPUs: %w", err)
	}
	return i.driver(ctx, boot)
}

func (i Inventory) driver(ctx context.Context, boot bootState) (GPUs, error) {
	if c, ok := i.cached(boot); ok {
		return c, nil
	}
	return i.query(ctx, boot)
}

// cached fails for a damaged cache and for another bootState.
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

// query runs in one process at a time, because it can take seconds.
func (i Inventory) query(ctx context.Context, boot bootState) (GPUs, error) {
	if err := os.MkdirAll(filepath.Dir(i.CachePath), 0o711); err != nil {
		return GPUs{}, fmt.Errorf("list the node's GPUs: %w", err)
	}
	lock, err := i.lock(ctx)
	if err != nil {
		return GPUs{}, fmt.Errorf("list the node's GPUs: %w", err)
	}
	defer lock.Close()
	if c, ok := i.cached(boot); ok { // by the other process
		return c, nil
	}
	data, err := i.Query(ctx)
	if err != nil {
		return GPUs{}, fmt.Errorf("list the node's GPUs without gpuslice-agent: %w", err)
	}
	f, err := decodeNode(data)
	if err != nil {
		return GPUs{}, fmt.Errorf("list the node's GPUs: %w", err)
	}
	if len(f.Devices) > 0 { // none: the driver can be loaded later
		if data, err = json.Marshal(gpuCache{boot, data}); err == nil {
			err = atomicfile.Write(i.CachePath, data, 0o600)
		}
		if err != nil {
			return GPUs{}, fmt.Errorf("cache the list of the GPUs: %w", err)
		}
	}
	c := f.gpus()
	if len(c.Capacity) == 0 {
		c.None = "NVIDIA's driver reports none (nvidia-smi -L lists its GPUs)"
	}
	return c, nil
}

func (i Inventory) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(i.CachePath+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := rawfile.Lock(ctx, int(f.Fd())); err != nil {
		f.Close()
		return nil, fmt.Errorf("wait for another process that queries the driver: lock %s: %w", f.Name(), err)
	}
	return f, nil
}

func hostBoot() (bootState, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return bootState{}, err
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return bootState{}, fmt.Errorf("read the uptime: %w", err)
	}
	driver, _ := os.ReadFile("/sys/module/nvidia/version")
	gpus, _ := filepath.Glob("/proc/driver/nvidia/gpus/*")
	mig, _ := filepath.Glob("/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*")
	return bootState{
		ID:     string(bytes.TrimSpace(id)),
		Since:  time.Now().Add(-time.Duration(up.Nano())),
		Driver: string(bytes.TrimSpace(driver)),
		GPUs:   strings.Join(append(gpus, mig...), " "),
	}, nil
}
