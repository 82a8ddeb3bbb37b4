package oci

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

func TestPopulate(t *testing.T) {
	dir := t.TempDir()
	shares := []grant.Share{{UUID: gpu1, MemoryMiB: 8000, CorePercent: 30}, {UUID: mig0, MemoryMiB: 9856}}
	s := testSettings()
	s.Oversubscription = map[string]float64{gpu1: 2, mig0: 1}
	s.ContextMiB = map[string]int64{gpu1: 300}
	id := limiter.TurnIDOf("c1", "")
	require.NoError(t, Populate(dir, ledger.Claim{Shares: shares, CorePolicy: limiter.PolicyForce, TurnID: id}, s))

	limits, err := limiter.ReadLimits(limiter.LimitsPath(dir))
	require.NoError(t, err)
	assert.Equal(t, limiter.Limits{
		Generation:    1,
		TurnID:        id,
		Oversubscribe: true,
		Devices: []limiter.DeviceLimit{
			{UUID: gpu1, MemoryLimitBytes: 8000 << 20, PhysicalBytes: 4000 << 20, CorePercent: 30, Policy: limiter.PolicyForce, Priority: limiter.PriorityLow, ContextBytes: 300 << 20, Pages: limiter.Pages{KiB: 2048, SmallKiB: 1024}, MeasureFirst: true},
			{UUID: mig0, MemoryLimitBytes: 9856 << 20, Policy: limiter.PolicyForce, Priority: limiter.PriorityLow, Pages: limiter.Pages{KiB: 2048, SmallKiB: 1024}, MeasureFirst: true},
		},
	}, limits)
	usage, err := limiter.ReadUsage(limiter.UsagePath(dir))
	require.NoError(t, err)
	assert.Zero(t, usage.Processes)
	require.Len(t, usage.Devices, 2)
	assert.Equal(t, gpu1, usage.Devices[0].UUID)
	assert.Equal(t, 2, countFiles(t, dir), "and the list of libraries")
	assert.Equal(t, 6, countFiles(t, limiter.FilesDir(dir)), "and the mount points, and the library's link")
	link, err := os.Readlink(filepath.Join(limiter.FilesDir(dir), "libvgpu-before-libasan.so"))
	require.NoError(t, err)
	assert.Equal(t, "libvgpu.so", link)
	assert.Equal(t, 2, countFiles(t, filepath.Join(limiter.FilesDir(dir), "turns")), "by the index of the limits")
}

func TestPopulateRefuses(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, Populate(dir, ledger.Claim{Shares: nil}, testSettings()), "no share")
	require.ErrorContains(t, Populate(dir, ledger.Claim{Shares: one(0, 0)}, testSettings()), "memory 0 MiB")
	assert.Zero(t, countFiles(t, dir), "nothing is written")
	require.ErrorIs(t, Populate(filepath.Join(dir, "none"), ledger.Claim{Shares: one(1, 1)}, testSettings()), os.ErrNotExist)
}

func BenchmarkPopulate(b *testing.B) {
	root := b.TempDir()
	s, shares := testSettings(), one(8000, 30)
	n := 0
	for b.Loop() {
		n++
		dir := filepath.Join(root, strconv.Itoa(n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := Populate(dir, ledger.Claim{Shares: shares}, s); err != nil {
			b.Fatal(err)
		}
	}
}

// A soft ceiling counts above a share that is limited; priority is the claim's.
func TestPopulateCores(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Populate(dir, ledger.Claim{
		CoreCeiling: 60, HighPriority: true,
		Shares: []grant.Share{{UUID: gpu0, MemoryMiB: 1, CorePercent: 30}, {UUID: gpu1, MemoryMiB: 1}, {UUID: gpu2, MemoryMiB: 1, CorePercent: 70}},
	}, testSettings()))
	limits, err := limiter.ReadLimits(limiter.LimitsPath(dir))
	require.NoError(t, err)
	for i, want := range []uint32{60, 0, 0} {
		assert.Equal(t, want, limits.Devices[i].CoreSoftPercent, i)
		assert.Equal(t, limiter.PriorityHigh, limits.Devices[i].Priority)
	}
}
