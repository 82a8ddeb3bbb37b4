//go:build root

package limiter_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkOvershoot: a million random operations on memory in 64 processes of one
// container, which are killed at random; by how much the container ever had more than
// its limit, as the simulated driver knows it to the byte.
func BenchmarkOvershoot(b *testing.B) {
	for range b.N {
		overshoot(b, 1e6)
	}
	b.ReportMetric(0, "ns/op")
}

func overshoot(b *testing.B, operations uint64) {
	b.Helper()
	const processes, limit, context = 64, 8*giB + 12345, 24 * miB
	c := newContainerKnowing(b, newMachine(b, "H200:context_mib=24"), context, gpu{gpuIDs[0], limit})
	counter := filepath.Join(b.TempDir(), "operations")
	require.NoError(b, os.WriteFile(counter, make([]byte, 8), 0o600))
	done := func() uint64 {
		raw, err := os.ReadFile(counter)
		require.NoError(b, err)
		return binary.LittleEndian.Uint64(raw)
	}
	var stop atomic.Bool
	var kills atomic.Uint64
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(i)))
			for !stop.Load() {
				cmd := c.command(filepath.Join(bin, "churn"), "3", fmt.Sprint(random.IntN(1e6)), fmt.Sprint(512*miB), "2", counter)
				if cmd.Start() != nil {
					return
				}
				killer := time.AfterFunc(time.Duration(random.Int64N(int64(4*time.Second))), func() {
					if cmd.Process.Kill() == nil {
						kills.Add(1)
					}
				})
				cmd.Wait()
				killer.Stop()
			}
		})
	}
	for start := time.Now(); done() < operations && time.Since(start) < 8*time.Minute; {
		time.Sleep(100 * time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
	peak, now := c.peakTotal(b)
	b.ReportMetric(float64(done()), "operations")
	b.ReportMetric(float64(kills.Load()), "kills")
	b.ReportMetric(float64(max(0, int64(peak)-limit)), "overshoot-bytes")
	b.ReportMetric(float64(limit-int64(peak)), "never-used-bytes")
	b.ReportMetric(float64(now+c.used(b)), "left-bytes")
}
