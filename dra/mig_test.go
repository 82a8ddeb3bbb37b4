package dra_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuslice/gpuslice/dra"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/dra/partition"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// migGPU is one GPU in MIG mode, with one place.
type migGPU struct {
	mu   sync.Mutex
	list []hardware.GPUInstance
	busy bool
}

const madeMIG = "MIG-11111111-0000-4000-8000-000000000001"

var half = hardware.Place{Start: 4, Size: 4}

func (g *migGPU) Instances(context.Context, string) ([]hardware.GPUInstance, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.list), nil
}

func (g *migGPU) CreateInstance(_ context.Context, _ string, profile, start, size int) (int, bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = append(g.list, hardware.GPUInstance{ID: 2, Profile: profile, Place: hardware.Place{Start: start, Size: size}})
	return 2, true, nil
}

func (g *migGPU) CreateCompute(context.Context, string, int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = []hardware.GPUInstance{{ID: 2, Profile: g.list[0].Profile, Place: g.list[0].Place, Compute: []hardware.ComputeInstance{{UUID: madeMIG}}}}
	return nil
}

func (g *migGPU) DestroyCompute(context.Context, string, int, int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy {
		return errors.New("in use")
	}
	g.list = []hardware.GPUInstance{{ID: 2, Profile: g.list[0].Profile, Place: g.list[0].Place}}
	return nil
}

func (g *migGPU) DestroyInstance(context.Context, string, int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = nil
	return nil
}

func (g *migGPU) devices() []hardware.GPUInstance {
	list, _ := g.Instances(context.Background(), "")
	return list
}

// withMIG is a driver with a place on a GPU; listed: NVML's reading shows MIG devices.
func withMIG(t *testing.T, listed bool) (*fixture, *migGPU, *resourceapi.ResourceClaim) {
	f := newFixture(t)
	gpu := &migGPU{}
	var err error
	f.config.MIG, err = partition.Open(partition.Config{
		Dir: filepath.Join(f.dir, "mig"), Boot: "b", GPUs: gpu, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Held: func(context.Context, string) (bool, error) { return false, nil },
	})
	require.NoError(t, err)
	whole := device(gpuA)
	whole.GPU.Profiles = []hardware.MIGProfile{{ID: 9, Name: "3g.71gb", MemoryMiB: 71168, Slices: 3, Most: 2, Places: []hardware.Place{half}}}
	places := devices.PlacesOf(whole, func(hardware.GPUInstance) bool { return true })
	require.Len(t, places, 1)
	node := f.config.Node
	f.config.Node = func() (devices.Node, bool) {
		n, known := node()
		n.Places = places
		n.Devices = nil
		if list := gpu.devices(); listed && len(list) == 1 && len(list[0].Compute) == 1 {
			made := devices.Device{Capacity: grant.GPU{UUID: madeMIG, MemoryMiB: 71168, CorePercent: 100, Replicas: 1}, GPU: whole.GPU, OnRequest: true}
			n.Devices = append(n.Devices, made)
		}
		return n, known
	}
	f.driver = dra.New(f.config)
	return f, gpu, claim(resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: "gpu.gpuslice.io", Pool: "node-1/h200", Device: places[0].Name()})
}

func TestMIGDeviceIsMadeAndDestroyed(t *testing.T) {
	f, gpu, c := withMIG(t, true)
	first, err := f.prepare(c)
	require.NoError(t, err)
	require.Len(t, gpu.devices(), 1)
	record, err := f.config.Prepared.Read(uid)
	require.NoError(t, err)
	require.Equal(t, map[string][]grant.Share{"gpu": {{UUID: madeMIG, MemoryMiB: 71168, CorePercent: 100}}}, record.Requests)
	require.Equal(t, partition.Used, f.config.MIG.Records()[0].State)
	for range 3 {
		again, err := f.prepare(c)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	require.NoError(t, f.unprepare(uid))
	require.Empty(t, gpu.devices())
	require.Empty(t, f.files())
	require.NoError(t, f.unprepare(uid))
	_, err = f.prepare(c)
	require.NoError(t, err)
	require.NoError(t, f.unprepare(uid))
}

// A ResourceClaim that is refused after its MIG device was made leaves none.
func TestRefusedMIGDevice(t *testing.T) {
	f, gpu, c := withMIG(t, true)
	f.set(func() { f.noRoom = errors.New("no room") })
	_, err := f.impatient().prepare(c)
	require.ErrorContains(t, err, "no room")
	require.Empty(t, gpu.devices())
	require.Empty(t, f.config.MIG.Records())

	f, gpu, c = withMIG(t, false)
	_, err = f.impatient().prepare(c)
	require.ErrorContains(t, err, "not made yet", "the next reading of the GPUs would list it")
	require.Empty(t, gpu.devices())
}

// A pod ends although something has its MIG device, which is destroyed later.
func TestMIGDeviceInUse(t *testing.T) {
	f, gpu, c := withMIG(t, true)
	_, err := f.prepare(c)
	require.NoError(t, err)
	gpu.busy = true
	require.NoError(t, f.unprepare(uid))
	require.Len(t, gpu.devices(), 1)
	require.True(t, f.config.MIG.Records()[0].Ending())
	_, err = f.impatient().prepare(c)
	require.ErrorContains(t, err, "not free yet")
	gpu.busy = false
	f.config.MIG.Check(t.Context())
	require.Empty(t, gpu.devices())
}
