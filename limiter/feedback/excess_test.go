package feedback

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/limiter"
)

func TestExcess(t *testing.T) {
	type part struct {
		Peer
		used  float64
		wants bool
		gaps  bool
	}
	of := func(weight, used float64, wants bool) part {
		return part{Peer{Weight: weight, Turn: limiter.Turn{Lag: int64(80 * time.Millisecond)}}, used, wants, false}
	}
	lacksLittle := func(p part) part { p.Lag = int64(lackTime); return p }
	pauses := func(p part) part { p.gaps = true; return p }
	low := func(p part) part { p.Low = true; return p }
	free := func(p part) part { p.Free = true; return p }
	// A container's own words can be false: that it lacks time, that it does not want the GPU.
	false1 := func(p part) part { p.Lag, p.gaps = math.MaxInt64, true; return p }
	for name, test := range map[string]struct {
		a, b part
		want bool
	}{
		"each has its share":                    {of(30, 31, true), of(70, 69, true), false},
		"a tenant that takes half":              {of(10, 50, true), of(90, 50, true), true},
		"with false words":                      {false1(of(10, 50, false)), of(90, 50, true), true},
		"the other is idle":                     {of(10, 99, true), of(90, 0, false), false},
		"the other works a little, when it can": {of(10, 95, true), of(90, 3, false), false},
		"the other lacks little":                {of(50, 66.5, true), lacksLittle(of(50, 33.5, true)), false},
		"the other pauses between launches":     {of(50, 79, true), pauses(of(50, 21, true)), false},
		"a little more":                         {of(30, 38, true), of(70, 62, true), false},
		"low priority beside high":              {low(of(50, 50, true)), of(50, 50, true), true},
		"both of low priority":                  {low(of(50, 50, true)), low(of(50, 50, true)), false},
		"not limited":                           {free(of(10, 50, true)), of(90, 50, true), false},
	} {
		var x excesses
		var found []Excess
		for second := range uint64(ExcessSteps) {
			now := second * 1e9
			assert.Empty(t, found, name)
			peers := map[string]Peer{}
			for id, p := range map[string]part{"a": test.a, "b": test.b} {
				if p.wants {
					p.WantUntil = now + 1
				}
				p.Busy = now
				if p.gaps {
					p.Busy = now / 100 * 96
				}
				peers[id] = p.Peer
			}
			found = x.step(now, map[string]map[string]float64{gpu0: {"a": test.a.used, "b": test.b.used, stranger: 5}}, map[string]map[string]Peer{gpu0: peers})
		}
		if !test.want {
			assert.Empty(t, found, name)
			continue
		}
		if assert.Len(t, found, 1, name) {
			assert.Equal(t, "a", found[0].Container, name)
			assert.Greater(t, found[0].Used, found[0].Due, name)
		}
		for second := range uint64(ExcessSteps) { // it ends
			found = x.step(1e12+second, map[string]map[string]float64{gpu0: {"b": 90}}, map[string]map[string]Peer{gpu0: {"a": {Weight: 10}, "b": {Weight: 90}}})
		}
		assert.Empty(t, found, name)
		assert.Empty(t, x.step(2e12, nil, nil))
		assert.Empty(t, x, "of containers that are gone nothing is kept")
	}
}

// Two seconds of the one and then eight of the other, as long kernels have it, are no excess.
func TestExcessOfLongKernels(t *testing.T) {
	var x excesses
	for second := range uint64(300) {
		now := second * 1e9
		busy := map[string]float64{"a": 0, "b": 100}
		if second%10 < 2 {
			busy = map[string]float64{"a": 100, "b": 0}
		}
		peer := func(weight float64) Peer {
			return Peer{Turn: limiter.Turn{WantUntil: now + 1, Lag: int64(80 * time.Millisecond), Busy: now}, Weight: weight}
		}
		assert.Empty(t, x.step(now, map[string]map[string]float64{gpu0: busy}, map[string]map[string]Peer{gpu0: {"a": peer(20), "b": peer(80)}}))
	}
}

// Whatever a container publishes, one that has no more than its share by NVML is not reported while all want the GPU.
func TestExcessOfNonsense(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x excesses
		for range ExcessSteps + 2 {
			now := rapid.Uint64().Draw(t, "now")
			turn := func() limiter.Turn {
				return limiter.Turn{Busy: rapid.Uint64().Draw(t, "busy"), Lag: rapid.Int64().Draw(t, "lag"), WantUntil: rapid.Uint64().Draw(t, "want")}
			}
			found := x.step(now, map[string]map[string]float64{gpu0: {"a": 30, "b": 70}}, map[string]map[string]Peer{gpu0: {"a": {Turn: turn(), Weight: 30}, "b": {Turn: turn(), Weight: 70}}})
			assert.Empty(t, found)
		}
	})
}
