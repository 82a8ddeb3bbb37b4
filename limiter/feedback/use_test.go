package feedback

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/nvidia"
)

func TestUse(t *testing.T) {
	s := newScene(t)
	assert.Nil(t, s.Use(), "nothing was seen yet")
	s.times = map[string][]nvidia.ProcessTime{gpu0: {{PID: 1, Percent: 40}, {PID: 3, Percent: 20}, {PID: 99, Percent: 30}}}
	for range 12 {
		require.NoError(t, s.once())
	}
	use := s.Use()
	assert.InDelta(t, 60, use.Percent[gpu0]["a"], 0.1, "of all its processes; a stranger's isn't its")
	assert.NotContains(t, use.Percent[gpu0], "b")
	assert.NotContains(t, use.Percent[gpu0], stranger)
	assert.NotContains(t, use.Worked[gpu0], "b")
	worked := use.Worked[gpu0]["a"]
	assert.Equal(t, use.At, worked)

	s.times[gpu0] = nil
	require.NoError(t, s.once())
	assert.InDelta(t, 30, s.Use().Percent[gpu0]["a"], 0.1, "no new sample isn't no work")
	for range 6 {
		require.NoError(t, s.once())
	}
	assert.Empty(t, s.Use().Percent[gpu0])
	assert.Equal(t, worked, s.Use().Worked[gpu0]["a"], "when it last was at work is still known")

	s.containers = s.containers[1:]
	require.NoError(t, s.once())
	assert.Empty(t, s.Use().Worked[gpu0], "of a container that is gone nothing is kept")

	s.failure = errors.New("NVML hangs")
	s.times = nil
	require.Error(t, s.once())
	assert.NotContains(t, s.Use().Percent, gpu0, "a GPU without numbers")
	s.containers = nil
	require.NoError(t, s.once())
	assert.Nil(t, s.Use())
}
