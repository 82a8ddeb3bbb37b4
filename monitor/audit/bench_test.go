package audit

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/limiter"
)

// BenchmarkLook is one look on a node with 500 containers of which none, or 20 with a
// process each, is on a card, beside this machine's other processes. Of six looks one is
// thorough.
func BenchmarkLook(b *testing.B) {
	var claims []Claim
	for n := range 500 {
		usage := filepath.Join(b.TempDir(), "usage")
		require.NoError(b, limiter.CreateUsage(usage, []string{cardA}))
		require.NoError(b, limiter.WriteLimits(filepath.Join(filepath.Dir(usage), "limits"), limiter.Limits{Devices: []limiter.DeviceLimit{{UUID: cardA, MemoryLimitBytes: 1 << 30}}}))
		claims = append(claims, Claim{Container: Container{ID: fmt.Sprintf("%064x", n)}, UsageFile: usage})
	}
	pids, err := procfs("/proc").all()
	require.NoError(b, err)
	busy := map[string][]gpu.Process{cardA: nil}
	for _, pid := range pids[:min(20, len(pids))] {
		busy[cardA] = append(busy[cardA], gpu.Process{PID: pid, Bytes: 1, Known: true})
	}
	for name, devices := range map[string]map[string][]gpu.Process{"idle": {cardA: nil}, "20 processes": busy} {
		b.Run(name, func(b *testing.B) {
			a := New(Config{
				Devices: func(context.Context) (map[string][]gpu.Process, error) { return devices, nil },
				Claims:  func(context.Context) ([]Claim, error) { return append([]Claim(nil), claims...), nil },
				Granted: func(c *Claim) ([]Device, error) {
					l, err := limiter.ReadLimits(filepath.Join(filepath.Dir(c.UsageFile), "limits"))
					if err != nil {
						return nil, err
					}
					return []Device{{UUID: l.Devices[0].UUID, LimitBytes: l.Devices[0].MemoryLimitBytes}}, nil
				},
				Inspector: NewInspector("/proc", b.TempDir(), func(string) (Container, bool, bool) { return Container{}, false, false }),
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
		if _, err := scanMaps(strings.NewReader(text), func(file) bool { return false }); err != nil {
			b.Fatal(err)
		}
	}
}
