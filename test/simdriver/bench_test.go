//go:build root

package simdriver

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The two costs that the simulation must not add to what it is used to measure: a process' start (5 ms at most) and a
// launch (0.3 µs).

func BenchmarkStart(b *testing.B) {
	s := New(b, Plain, "H200")
	for b.Loop() {
		require.NoError(b, s.Command("workloads/meminfo").Run())
	}
}

func BenchmarkLaunch(b *testing.B) {
	s := New(b, Plain, "H200")
	for b.Loop() {
		values, code := s.Run("sim/check", "launch-cost")
		require.Zero(b, code)
		b.ReportMetric(float64(values.Int("launch_ns")), "ns/launch")
	}
}
