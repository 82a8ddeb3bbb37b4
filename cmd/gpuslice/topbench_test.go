package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// What top does each second on a node of 500 containers: to read it, and to draw it.
func BenchmarkTop(b *testing.B) {
	f := nodeOf(b, 16, "topo-16-switches.txt")
	for i := range f.Devices {
		f.Devices[i].Replicas = 100
	}
	s := nodetest.NewStateDirOf(b, f)
	require.NoError(b, node.Write(s.Dir, f))
	for i := range 500 {
		s.Claim(fmt.Sprintf("c-%04d", i), fmt.Sprintf("pod-%d", i), grant.Share{UUID: gpuUUID(i % 16), MemoryMiB: 1000, CorePercent: 1})
	}
	n, err := view.Read(b.Context(), s.Dir)
	require.NoError(b, err)
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			_, err := view.Read(b.Context(), s.Dir)
			require.NoError(b, err)
		}
	})
	b.Run("draw", func(b *testing.B) {
		m := &topModel{interval: time.Second, by: "memory"}
		for b.Loop() {
			m.take(reading{at: nodetest.Time, node: n})
			require.Len(b, m.page(term.Style{Colors: true}, 160, 50), 50)
		}
	})
}
