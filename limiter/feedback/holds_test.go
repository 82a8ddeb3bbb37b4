package feedback

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/limiter"
)

func TestHolds(t *testing.T) {
	var h holds
	start := time.Unix(1700000000, 0)
	second := 0
	// step is one second in which a works for a part, and b waits with a lag.
	var busy uint64
	free := false
	step := func(part float64, lagA, lagB time.Duration) []Hold {
		second++
		now := uint64(second) * 1e9
		busy += uint64(part * 1e9)
		return h.step(now, start.Add(time.Duration(second)*time.Second), map[string]map[string]Peer{gpu0: {
			"a": {Turn: limiter.Turn{Busy: busy, Lag: int64(lagA), WantUntil: now + 1}, Free: free},
			"b": {Turn: limiter.Turn{Lag: int64(lagB), WantUntil: now + 1}},
			"c": {Turn: limiter.Turn{Lag: int64(80 * time.Millisecond), WantUntil: now - 1}}, // it does not want
		}})
	}
	for range 3 {
		assert.Empty(t, step(1, -time.Second, 80*time.Millisecond), "a short kernel")
	}
	want := []Hold{{GPU: gpu0, Container: "a", Since: start.Add(time.Second), Waiting: []string{"b"}}}
	assert.Equal(t, want, step(1, -time.Second, 80*time.Millisecond))
	assert.Equal(t, want, step(0.97, -time.Second, 80*time.Millisecond))
	assert.Empty(t, step(1, -time.Second, 30*time.Millisecond), "the other lacks little")
	assert.Empty(t, step(1, 80*time.Millisecond, 80*time.Millisecond), "it lacks time itself")
	assert.Empty(t, step(1, -20*time.Millisecond, 80*time.Millisecond), "it has had its share, by the length of a kernel")
	assert.Equal(t, want, step(1, -time.Second, 80*time.Millisecond))
	assert.Empty(t, step(0.5, -time.Second, 80*time.Millisecond), "it paused")
	for range 2 {
		assert.Empty(t, step(1, -time.Second, 80*time.Millisecond))
	}
	assert.Len(t, step(1, -time.Second, 80*time.Millisecond), 1)
	free = true
	assert.Empty(t, step(1, -time.Second, 80*time.Millisecond), "nothing limits it")
	assert.Empty(t, h.step(uint64(second+1)*1e9, start, nil))
	assert.Empty(t, h, "of containers that are gone nothing is kept")
}

// gpuslice describe looks once, without an agent.
func TestHoldsNow(t *testing.T) {
	const now = uint64(100e9)
	at := time.Unix(1700000000, 0)
	look := func(a, b limiter.Turn, free bool) []Hold {
		return HoldsNow(now, at, map[string]map[string]Peer{gpu0: {"a": {Turn: a, Free: free}, "b": {Turn: b}}})
	}
	waits := limiter.Turn{Lag: int64(80 * time.Millisecond), WantUntil: now + 1}
	runs := limiter.Turn{Lag: -int64(2 * time.Second), WorkUntil: now + 1}
	assert.Equal(t, []Hold{{GPU: gpu0, Container: "a", Since: at.Add(-2 * time.Second), Waiting: []string{"b"}}}, look(runs, waits, false))
	assert.Empty(t, look(runs, limiter.Turn{Lag: waits.Lag, WantUntil: now - 1}, false), "the other does not want it")
	assert.Empty(t, look(runs, limiter.Turn{WantUntil: now + 1}, false), "the other lacks nothing")
	assert.Len(t, look(runs, limiter.Turn{WantUntil: now + 1, Credit: waits.Lag}, false), 1, "the other lacks what this one has taken")
	assert.Empty(t, look(limiter.Turn{Lag: runs.Lag, WorkUntil: now - 1e9}, waits, false), "it pays back")
	assert.Empty(t, look(limiter.Turn{Lag: -1e6, WorkUntil: now + 1}, waits, false), "it has a short debt")
	assert.Empty(t, look(runs, waits, true), "nothing limits it")
}

// Containers write anything.
func TestHoldsOfNonsense(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h holds
		for range 5 {
			turn := func() limiter.Turn {
				return limiter.Turn{Busy: rapid.Uint64().Draw(t, "busy"), Lag: rapid.Int64().Draw(t, "lag"), WantUntil: rapid.Uint64().Draw(t, "want"), Looked: rapid.Uint64().Draw(t, "looked"), WorkUntil: rapid.Uint64().Draw(t, "work")}
			}
			now, peers := rapid.Uint64().Draw(t, "now"), map[string]map[string]Peer{gpu0: {"a": {Turn: turn()}, "b": {Turn: turn()}}}
			found := append(h.step(now, time.Unix(0, 0), peers), HoldsNow(now, time.Unix(0, 0), peers)...)
			for _, f := range found {
				require.NotEmpty(t, f.Waiting)
				require.NotContains(t, f.Waiting, f.Container)
			}
		}
	})
}

// Each hold is reported once.
func TestHoldIsReportedOnce(t *testing.T) {
	var began []Hold
	h := NewHolds(HoldsConfig{Began: func(hold Hold) { began = append(began, hold) }})
	look := func(second, busy uint64) bool {
		now := second * 1e9
		return h.look(now, time.Unix(0, 0), map[string]map[string]Peer{gpu0: {
			"a": {Turn: limiter.Turn{Busy: busy * 1e9, Lag: -1e9}}, "b": {Turn: limiter.Turn{Lag: 8e7, WantUntil: now + 1}},
		}})
	}
	for second := range uint64(8) {
		assert.True(t, look(second+1, second+1))
	}
	assert.Len(t, began, 1)
	assert.Len(t, h.Now(), 1)
	look(9, 8)
	assert.Empty(t, h.Now())
	for second := range uint64(5) {
		look(second+10, second+9)
	}
	assert.Len(t, began, 2, "and again after a pause")
	assert.False(t, h.look(20e9, time.Unix(0, 0), nil), "no container wants it")
}
