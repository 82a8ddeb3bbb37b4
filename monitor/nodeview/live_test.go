package nodeview_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// sources are an agent's, as a test has them.
type sources struct {
	*nodetest.StateDir
	telemetry map[string]nvidia.Telemetry
	err       error
	use       *feedback.Use
}

func (s *sources) live() *nodeview.Live {
	return nodeview.NewLive(nodeview.LiveConfig{
		Snapshot: s.Ledger.Snapshot, Dir: s.Ledger.Dir, Node: nodetest.File, Cordoned: func() ([]string, error) { return ledger.Cordoned(s.Dir) },
		Telemetry: func(context.Context) (map[string]nvidia.Telemetry, error) { return s.telemetry, s.err },
		Use:       func() *feedback.Use { return s.use }, Log: slog.New(slog.DiscardHandler),
	})
}

// An agent sees what everybody can read, and more.
func TestLive(t *testing.T) {
	s := &sources{StateDir: nodetest.NewStateDir(t)}
	s.Claim("c1", "first", share(nodetest.H200, 1000, 10), share(nodetest.T4, 1000, 0))
	s.Claim("c2", "second", share(nodetest.H200, 1000, 10))
	s.Use("c1", 0, 5, 7)
	live := s.live()
	got, err := live.Read(t.Context())
	require.NoError(t, err)
	assert.Equal(t, read(t, s.Dir), got, "NVML was not read yet")

	celsius := 61
	worked := time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
	s.telemetry = map[string]nvidia.Telemetry{
		nodetest.H200: {Taken: time.Now(), TemperatureCelsius: &celsius},
		nodetest.T4:   {Taken: time.Now().Add(-time.Minute), TemperatureCelsius: &celsius},
	}
	s.use = &feedback.Use{
		At:      time.Now(),
		Percent: map[string]map[string]float64{nodetest.H200: {"c1": 12.5, "gone": 50}},
		Worked:  map[string]map[string]time.Time{nodetest.H200: {"c1": worked}},
	}
	require.NoError(t, live.ReadTelemetry(t.Context()))
	got, err = live.Read(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 61, *got.GPUs[0].Telemetry.TemperatureCelsius)
	assert.Nil(t, got.GPUs[1].Telemetry, "too old: NVML hangs")
	first, second := got.Containers[0].Shares, got.Containers[1].Shares
	assert.InDelta(t, 12.5, *first[0].CoreUsedPercent, 1e-9)
	assert.Equal(t, worked, first[0].LastLaunch)
	assert.Nil(t, first[1].CoreUsedPercent, "a GPU without numbers")
	assert.Zero(t, *second[0].CoreUsedPercent)
	assert.True(t, second[0].LastLaunch.IsZero())

	s.err, s.telemetry = errors.New("GPU 1 is lost"), map[string]nvidia.Telemetry{nodetest.H200: s.telemetry[nodetest.H200]}
	require.ErrorContains(t, live.ReadTelemetry(t.Context()), "lost")
	s.use.At = time.Now().Add(-time.Minute)
	got, err = live.Read(t.Context())
	require.NoError(t, err)
	assert.NotNil(t, got.GPUs[0].Telemetry, "what could be read")
	assert.Nil(t, got.Containers[0].Shares[0].CoreUsedPercent, "what was seen a minute ago is no news")
	require.NoError(t, s.Ledger.Cordon(t.Context(), nodetest.T4))
	got, err = live.Read(t.Context())
	require.NoError(t, err)
	assert.True(t, got.GPUs[1].Cordoned)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "cordoned"), []byte("x"), 0o600))
	s.use = nil
	got, err = live.Read(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Problems, 1)
	assert.Contains(t, got.Problems[0], "read the cordons")

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	live.Run(canceled) // ends
}

// A container is there from its creation, before it has made a call, and until it is
// removed.
func TestLiveFromCreationToRemoval(t *testing.T) {
	s := &sources{StateDir: nodetest.NewStateDir(t)}
	live := s.live()
	states := func() (all []string) {
		n, err := live.Read(t.Context())
		require.NoError(t, err)
		for _, c := range n.Containers {
			require.Empty(t, c.UsageProblem)
			all = append(all, c.Name+" "+c.State)
		}
		return all
	}
	claim := func(id, container string) {
		settings := ledger.Claim{ContainerID: id, Owner: ledger.OwnerNRI, PodUID: "u", PodNamespace: "d", PodName: "p", Container: container, Shares: []grant.Share{share(nodetest.H200, 1000, 10)}}
		_, err := s.Ledger.Claim(t.Context(), settings, node.Capacities(nodetest.File().Devices), s.Populate(settings))
		require.NoError(t, err)
	}
	require.Empty(t, states())
	claim("c1", "init")
	require.Equal(t, []string{"init active"}, states())
	require.NoError(t, s.Ledger.Release(t.Context(), "c1"))
	claim("c2", "main")
	require.Equal(t, []string{"init released", "main active"}, states())
	require.NoError(t, s.Ledger.Remove(t.Context(), "c1"))
	require.Equal(t, []string{"main active"}, states())
	require.NoError(t, s.Ledger.Remove(t.Context(), "c2"))
	require.Empty(t, states())
}

// What is not known is not in the JSON: a zero would be a number.
func TestJSONOfWhatIsNotKnown(t *testing.T) {
	text, err := json.Marshal(view.GPU{Telemetry: &nvidia.Telemetry{}})
	require.NoError(t, err)
	assert.NotContains(t, string(text), "temperature")
	text, err = json.Marshal(view.Share{})
	require.NoError(t, err)
	for _, field := range []string{"lastLaunch", "coreUsedPercent"} {
		assert.NotContains(t, string(text), field)
	}
}
