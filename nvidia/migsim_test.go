package nvidia

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is computed of a MIG device's attributes is what the driver calls it, on every
// kind of GPU.
func TestMIGOfTheSimulatedDriver(t *testing.T) {
	library, simctl := simulated(t, "H200", "H100", "A100-80GB", "A100-40GB", "T4")
	made := [][]string{
		{"1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb"},
		{"1g.10gb", "1g.20gb", "4g.40gb"},
		{"1g.10gb+me", "3g.40gb", "1g.20gb"},
		{"7g.40gb"},
	}
	for i, profiles := range made {
		simctl("mig", fmt.Sprint(i), "enable")
		simctl(append([]string{"mig", fmt.Sprint(i), "create"}, profiles...)...)
	}
	lib := nvml.New(nvml.WithLibraryPath(library))
	r := reader{lib: lib, numa: sysfsNUMA(hostSysfs())}
	require.NoError(t, r.open())
	defer func() { require.NoError(t, r.close()) }()
	node, err := r.read(t.Context())
	require.NoError(t, err)
	require.Empty(t, node.Faults)
	seen := map[string]bool{}
	for i, gpu := range node.GPUs {
		assert.Equal(t, i < len(made), gpu.MIGEnabled)
		if !gpu.MIGEnabled {
			assert.Empty(t, gpu.MIG)
			continue
		}
		var profiles []string
		dev, ret := lib.DeviceGetHandleByIndex(i)
		require.Equal(t, nvml.SUCCESS, ret)
		for place, d := range gpu.MIG {
			profiles = append(profiles, d.Profile)
			assert.Equal(t, gpu.UUID, d.GPU)
			assert.Less(t, d.MemoryMiB, gpu.MemoryMiB)
			assert.Equal(t, int(d.Profile[0]-'0'), d.Slices)
			assert.False(t, seen[d.UUID])
			seen[d.UUID] = true
			mig, ret := dev.GetMigDeviceHandleByIndex(place)
			require.Equal(t, nvml.SUCCESS, ret)
			attributes, ret := mig.GetAttributes()
			require.Equal(t, nvml.SUCCESS, ret)
			assert.Equal(t, d.Profile, profileFrom(attributes, gpu.MemoryMiB))
		}
		assert.ElementsMatch(t, made[i], profiles)
	}
}

// MIG devices come, go and fall ill under a cache that has NVML open.
func TestMIGHealthOnTheSimulatedDriver(t *testing.T) {
	library, simctl := simulated(t, "H200", "H200")
	simctl("mig", "0", "enable")
	c := NewCache(nvml.New(nvml.WithLibraryPath(library)), CacheOptions{
		Interval: 20 * time.Millisecond, Events: true, Settle: time.Millisecond,
	})
	changed := c.Changed()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, c.Run(ctx)) })
	defer wg.Wait()
	defer stop()
	until := func(what string, holds func(Snapshot) bool) {
		t.Helper()
		for deadline := time.After(time.Minute); !holds(c.Snapshot()); {
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("never %s: %+v", what, c.Snapshot())
			}
		}
	}
	mig := func(n int) func(Snapshot) bool {
		return func(s Snapshot) bool { return len(s.Node.GPUs) == 2 && len(s.Node.GPUs[0].MIG) == n }
	}
	until("a GPU in MIG mode without instances", func(s Snapshot) bool { return mig(0)(s) && s.Node.GPUs[0].MIGEnabled })
	simctl("mig", "0", "create", "1g.18gb", "1g.18gb", "2g.35gb")
	until("three instances", mig(3))
	devices := c.Node().GPUs[0].MIG
	gone := devices[2].UUID
	simctl("mig", "0", "destroy", gone)
	until("one less", mig(2))
	_, known := c.Health(gone)
	require.False(t, known)

	// It needs a reset, so that it stays.
	simctl("xid", devices[1].UUID, "48")
	until("its own XID", func(s Snapshot) bool { return strings.Contains(s.Health[devices[1].UUID].Reason, "XID 48") })
	h, _ := c.Health(devices[0].UUID)
	require.True(t, h.Healthy, "%+v", h)
	h, _ = c.Health(devices[0].GPU)
	require.True(t, h.Healthy, "%+v", h)

	simctl("lose", "0")
	until("ill with its GPU", func(s Snapshot) bool {
		return strings.Contains(s.Health[devices[0].UUID].Reason, "its GPU "+devices[0].GPU)
	})
	simctl("restore", "0")
	until("all well", func(s Snapshot) bool {
		for _, h := range s.Health {
			if !h.Healthy {
				return false
			}
		}
		return len(s.Node.GPUs) == 2
	})
}
