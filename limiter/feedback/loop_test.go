package feedback

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

const gpu0 = "GPU-00000001-5151-4000-8000-000000000001"

// scene is a node with two containers on a GPU, PIDs 1 and 2, and a loop.
type scene struct {
	*Loop
	containers []Container
	times      map[string][]nvidia.ProcessTime
	memories   map[string][]nvidia.ProcessMemory // nil: none of those that have time
	seen       map[string][]nvidia.ProcessMemory
	failure    error
	sources    map[string]nvidia.TimeSource
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{}
	for _, id := range []string{"a", "b"} {
		dir := t.TempDir()
		c := Container{ID: id, Dir: dir}
		require.NoError(t, os.MkdirAll(filepath.Dir(limiter.LimitsPath(dir)), 0o755))
		limits := limiter.Limits{Identity: limiter.IdentityOf(id), Devices: []limiter.DeviceLimit{{UUID: gpu0, MemoryLimitBytes: 1, CorePercent: 40}}}
		require.NoError(t, limiter.WriteLimits(limiter.LimitsPath(dir), limits))
		require.NoError(t, limiter.CreateUsage(limiter.UsagePath(dir), limits.UUIDs()))
		s.containers = append(s.containers, c)
	}
	s.Loop = New(Config{
		Containers: func(context.Context) ([]Container, error) { return s.containers, nil },
		Times:      func(context.Context) (map[string][]nvidia.ProcessTime, error) { return s.times, s.failure },
		Sources:    func() map[string]nvidia.TimeSource { return s.sources },
		Memories:   func(context.Context) (map[string][]nvidia.ProcessMemory, error) { return s.seen, nil },
		Owners: func(pids []int, files map[string]string) map[int]string {
			owners := map[int]string{}
			for pid, id := range map[int]string{1: "a", 2: "b", 3: "a"} {
				if _, ok := files[id]; ok && slices.Contains(pids, pid) {
					owners[pid] = id
				}
			}
			return owners
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return s
}

// once is one step; processes with GPU time have a GPU open.
func (s *scene) once() error {
	if s.memories == nil {
		s.seen = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 98}}}
		for _, times := range s.times {
			for _, p := range times {
				s.seen[gpu0] = append(s.seen[gpu0], nvidia.ProcessMemory{PID: p.PID})
			}
		}
	} else {
		s.seen = s.memories
	}
	_, err := s.Once(context.Background())
	return err
}

func (s *scene) residueOf(t *testing.T, i int) uint64 {
	t.Helper()
	residue, err := limiter.ReadResidue(limiter.LimitsPath(s.containers[i].Dir))
	require.NoError(t, err)
	return residue[0]
}

// The use of containers that have a claim in common is the claim's, whichever of them a process belongs to.
func TestUseOfACommonClaim(t *testing.T) {
	s := newScene(t)
	s.containers[0].Members = []string{"c", "d"}
	s.Loop.config.Owners = func(_ []int, files map[string]string) map[int]string {
		require.Equal(t, files["a"], files["c"])
		require.Equal(t, files["a"], files["d"])
		return map[int]string{1: "c", 2: "b", 3: "d"}
	}
	s.times = map[string][]nvidia.ProcessTime{gpu0: {{PID: 1, Percent: 15}, {PID: 3, Percent: 5}, {PID: 2, Percent: 40}}}
	for range 200 {
		require.NoError(t, s.once())
	}
	assert.InDelta(t, 20, s.Use().Percent[gpu0]["a"], 0.5)
	assert.InDelta(t, 40, s.Use().Percent[gpu0]["b"], 0.5)
	assert.Len(t, s.Use().Percent[gpu0], 2)
}

// Damaged or missing files of one container do not stop the others, and nothing is written where nothing has changed.
func TestLoop(t *testing.T) {
	s := newScene(t)
	s.times = map[string][]nvidia.ProcessTime{gpu0: {{PID: 1, Percent: 15}, {PID: 3, Percent: 5}, {PID: 2, Percent: 40}}}
	require.NoError(t, s.once())
	before, err := os.ReadFile(limiter.LimitsPath(s.containers[1].Dir))
	require.NoError(t, err)
	require.NoError(t, s.once())
	after, err := os.ReadFile(limiter.LimitsPath(s.containers[1].Dir))
	require.NoError(t, err)
	assert.Equal(t, before, after)

	require.NoError(t, os.Remove(limiter.LimitsPath(s.containers[0].Dir)))
	assert.ErrorContains(t, s.once(), limiter.LimitsPath(s.containers[0].Dir))
	assert.Contains(t, s.Use().Percent[gpu0], "b")

	s.containers, s.failure = nil, errors.New("no NVML")
	assert.NoError(t, s.once(), "no containers")
	assert.Empty(t, s.written)
	assert.Empty(t, s.beyond)
}

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

// Where NVML has no figures, those of the limiters are used. A container can write anything in its usage file.
func TestUseByTheLimiters(t *testing.T) {
	s := newScene(t)
	now := time.Unix(1700000000, 0)
	s.now = func() time.Time { return now }
	s.sources = map[string]nvidia.TimeSource{gpu0: nvidia.TimesByLimiter, "GPU-without-containers": nvidia.TimesByLimiter}
	s.memories = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 1}, {PID: 2}}}
	charge := func(i int, busy uint64) {
		t.Helper()
		const worked = 2048 + 8
		f, err := os.OpenFile(limiter.UsagePath(s.containers[i].Dir), os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, busy), worked)
		require.NoError(t, err)
	}
	step := func(busyA, busyB uint64) {
		t.Helper()
		charge(0, busyA)
		charge(1, busyB)
		now = now.Add(time.Second)
		require.NoError(t, s.once())
	}
	var sumA, sumB uint64
	for range 12 {
		sumA, sumB = sumA+6e8, sumB+25e7
		step(sumA, sumB)
	}
	assert.InDelta(t, 60, s.Use().Percent[gpu0]["a"], 0.1)
	assert.InDelta(t, 25, s.Use().Percent[gpu0]["b"], 0.1)
	assert.Equal(t, now, s.Use().Worked[gpu0]["b"])
	for range 12 {
		sumA += 6e8
		step(sumA, sumB)
	}
	assert.InDelta(t, 60, s.Use().Percent[gpu0]["a"], 0.1)
	assert.NotContains(t, s.Use().Percent[gpu0], "b", "it is idle")
	for _, nonsense := range []uint64{math.MaxUint64, 0, math.MaxUint64, 5} {
		step(nonsense, sumB)
		assert.LessOrEqual(t, s.Use().Percent[gpu0]["a"], 100.0)
	}
	require.NoError(t, os.WriteFile(limiter.UsagePath(s.containers[0].Dir), []byte("garbage"), 0o600))
	sumB += 25e7
	charge(1, sumB)
	now = now.Add(time.Second)
	require.ErrorIs(t, s.once(), limiter.ErrUsage)
	assert.Contains(t, s.Use().Percent[gpu0], "b", "one that is damaged is not in the way of others")

	s.sources[gpu0] = nvidia.TimesBySamples
	s.times = map[string][]nvidia.ProcessTime{gpu0: {{PID: 2, Percent: 40}}}
	_ = s.once()
	assert.NotContains(t, s.charged, gpu0, "by NVML again")
}

// What was found ends with the work: without processes there are no figures that could end it.
func TestExcessEndsWithTheWork(t *testing.T) {
	s := newScene(t)
	s.memories = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 1}, {PID: 2}}}
	s.times = map[string][]nvidia.ProcessTime{gpu0: {{PID: 1, Percent: 90}, {PID: 2, Percent: 10}}}
	s.config.Peers = func(context.Context) (map[string]map[string]Peer, error) {
		now := limiter.Now()
		peer := Peer{Turn: limiter.Turn{WantUntil: now + 1e12, Lag: 8e7, Busy: now, Looked: now, WorkUntil: now + 1e12}, Weight: 50}
		return map[string]map[string]Peer{gpu0: {"a": peer, "b": peer}}, nil
	}
	for range ExcessSteps {
		require.NoError(t, s.once())
	}
	require.Len(t, s.Excesses(), 1)
	s.memories, s.times = map[string][]nvidia.ProcessMemory{gpu0: nil}, nil
	require.NoError(t, s.once())
	assert.Empty(t, s.Excesses())
	s.memories = map[string][]nvidia.ProcessMemory{gpu0: {{PID: 1}, {PID: 2}}}
	s.times = map[string][]nvidia.ProcessTime{gpu0: {{PID: 1, Percent: 90}, {PID: 2, Percent: 10}}}
	require.NoError(t, s.once())
	assert.Empty(t, s.Excesses(), "the time before counts no more")
}
