package audit

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// BenchmarkLook is one look on a node with 500 containers of which none, or 20 with a
// process each, is on a GPU, beside this machine's other processes. Of six looks one is
// thorough.
func BenchmarkLook(b *testing.B) {
	var claims []Claim
	for n := range 500 {
		dir := b.TempDir()
		require.NoError(b, limiter.CreateUsage(limiter.UsagePath(dir), []string{gpuA}))
		require.NoError(b, limiter.WriteLimits(limiter.LimitsPath(dir), limiter.Limits{Devices: []limiter.DeviceLimit{{UUID: gpuA, MemoryLimitBytes: 1 << 30}}}))
		claims = append(claims, Claim{Container: Container{ID: fmt.Sprintf("%064x", n)}, Dir: dir})
	}
	pids, err := procfs.FS("/proc").All()
	require.NoError(b, err)
	busy := map[string][]nvidia.Process{gpuA: nil}
	for _, pid := range pids[:min(20, len(pids))] {
		busy[gpuA] = append(busy[gpuA], nvidia.Process{PID: pid, Bytes: 1, Known: true})
	}
	for name, devices := range map[string]map[string][]nvidia.Process{"idle": {gpuA: nil}, "20 processes": busy} {
		b.Run(name, func(b *testing.B) {
			inspector := NewInspector("/proc", b.TempDir(), func(string) (Container, bool, bool) { return Container{}, false, false })
			inspector.Nodes = func() map[uint64]DeviceNode { return map[uint64]DeviceNode{deviceA: {gpuA}} }
			var holder limiter.Holder
			b.Cleanup(holder.Close)
			a := New(Config{
				Devices: func(context.Context) (map[string][]nvidia.Process, error) { return devices, nil },
				Claims:  func(context.Context) ([]Claim, error) { return append([]Claim(nil), claims...), nil },
				Granted: func(c *Claim) ([]Device, error) {
					l, err := limiter.ReadLimits(limiter.LimitsPath(c.Dir))
					if err != nil {
						return nil, err
					}
					return []Device{{UUID: l.Devices[0].UUID, LimitBytes: l.Devices[0].MemoryLimitBytes}}, nil
				},
				Locks:     func(c *Claim) ([]limiter.Lock, error) { return holder.Locks(c.ID, c.Dir) },
				Inspector: inspector,
				Log:       slog.New(slog.DiscardHandler),
			})
			b.ReportMetric(float64(len(pids)), "processes")
			for b.Loop() {
				a.Once(context.Background(), time.Now())
			}
		})
	}
}

// BenchmarkMaps is looking through what a large program has mapped: 3,000 lines.
func BenchmarkMaps(b *testing.B) {
	text := strings.Repeat("7f0000000000-7f0000001000 r-xp 00000000 fd:01 4711                       /opt/conda/lib/python3.12/site-packages/some/module.so\n", 3000)
	for b.Loop() {
		if _, err := scanMaps(strings.NewReader(text), expected{library: func(file) Limiter { return LimiterForeign }}); err != nil {
			b.Fatal(err)
		}
	}
}
