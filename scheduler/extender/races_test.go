package extender

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// TestConflictsAreLimited: a call that always comes too late is refused for now, and not kept for ever.
func TestConflictsAreLimited(t *testing.T) {
	w := newWorld(t, 2, 1)
	book, lost := w.server.reserve, 0
	w.server.reserve = func(*scheduler.Pod, *request.Request, string, string) (scheduler.Placement, error) {
		lost++
		return scheduler.Placement{}, &engine.NoFitError{}
	}
	passed, result := w.filter(pod("late", 1000, 0))
	require.Empty(t, passed)
	require.Empty(t, result.Error, "an error would be the extender's, and not that of the moment")
	require.Empty(t, result.FailedAndUnresolvableNodes)
	require.Equal(t, maxAttempts, lost)
	for _, node := range w.nodes {
		require.Contains(t, result.FailedNodes[node], "5 times in a row")
	}

	w.server.reserve = func(p *scheduler.Pod, r *request.Request, node, owner string) (scheduler.Placement, error) {
		if lost++; lost < 2*maxAttempts {
			return scheduler.Placement{}, &engine.NoFitError{}
		}
		return book(p, r, node, owner)
	}
	passed, _ = w.filter(pod("late", 1000, 0))
	require.NotEmpty(t, passed, "it gets its turn")
}
