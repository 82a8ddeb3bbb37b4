package feedback

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
)

func tenant(id string, hard, soft uint32, busy float64, wants bool) Tenant {
	return Tenant{ID: id, Busy: busy, Wants: wants, Limit: limiter.DeviceLimit{
		CorePercent: hard, CoreSoftPercent: soft, Priority: limiter.PriorityLow,
	}}
}

// steps runs the same look so many times.
func steps(n int, past map[string]Past, strangers float64, tenants ...Tenant) (map[string]Past, map[string]limiter.CoreState) {
	var states map[string]limiter.CoreState
	for range n {
		past, states = Decide(past, tenants, strangers, 1)
	}
	return past, states
}

func TestContended(t *testing.T) {
	a, b := tenant("a", 30, 0, 30, false), tenant("b", 50, 0, 50, false)
	idle := func(t Tenant) Tenant { t.Busy = 0; return t }
	_, states := steps(1, nil, 0, a, idle(b))
	assert.Equal(t, map[string]limiter.CoreState{"a": {}, "b": {Contended: true}}, states, "only b sees that a is active")
	past, states := steps(1, nil, 0, a, b)
	assert.True(t, states["a"].Contended)
	assert.True(t, states["b"].Contended)
	past, states = steps(activeSteps, past, 0, a, idle(b))
	assert.True(t, states["a"].Contended, "a pause is no end")
	_, states = steps(1, past, 0, a, idle(b))
	assert.False(t, states["a"].Contended)

	_, states = steps(1, nil, 40, a)
	assert.True(t, states["a"].Contended, "a stranger counts too")
	_, states = steps(1, nil, 0.4, a)
	assert.False(t, states["a"].Contended, "next to nothing doesn't")

	a.Wants, b.Wants = true, true
	_, states = steps(20, nil, 0, a, idle(b))
	assert.False(t, states["a"].Contended, "a container's own report causes no contention")

	for name, limit := range map[string]limiter.DeviceLimit{
		"no limit": {}, "the whole GPU": {CorePercent: 100}, "disabled": {CorePercent: 30, Policy: limiter.PolicyDisable},
	} {
		free := Tenant{ID: "free", Limit: limit, Busy: 50, Wants: true}
		_, states = steps(20, nil, 0, a, free)
		assert.Equal(t, limiter.CoreState{}, states["free"], "%s: no state", name)
		assert.True(t, states["a"].Contended)
	}
}

func TestBlocked(t *testing.T) {
	low, high := tenant("low", 50, 0, 50, false), tenant("high", 50, 0, 50, false)
	high.Limit.Priority = limiter.PriorityHigh
	unlimited := tenant("unlimited", 0, 0, 10, false)
	disabled := tenant("disabled", 50, 0, 10, false)
	disabled.Limit.Policy = limiter.PolicyDisable
	past, states := steps(1, nil, 0, low, high, unlimited, disabled)
	assert.True(t, states["low"].Blocked)
	assert.False(t, states["high"].Blocked)
	assert.True(t, states["unlimited"].Blocked, "whatever its share")
	assert.True(t, states["disabled"].Blocked, "and its policy")
	high.Busy = 0
	past, states = steps(activeSteps, past, 0, low, high)
	assert.True(t, states["low"].Blocked)
	_, states = steps(1, past, 0, low, high)
	assert.False(t, states["low"].Blocked)
	_, states = steps(1, nil, 50, low)
	assert.False(t, states["low"].Blocked, "a stranger has no priority")
}

// The one of higher priority goes first, and what it leaves is used: a model of a GPU that
// gives each what it wants while time is free, and shares what is short by halves.
func TestPriorityConservesWork(t *testing.T) {
	for name, test := range map[string]struct {
		demand        float64 // of the one of higher priority
		low           uint32  // the other's share; 0: none
		highAtLeast   float64 // of its demand
		leastOfTheGPU float64
	}{
		"it fills the GPU":             {100, 40, 98, 98},
		"it leaves a little":           {80, 0, 78, 85},
		"it leaves half":               {50, 0, 48, 85},
		"it needs next to nothing":     {5, 0, 4.5, 85},
		"the other has a share of its": {30, 40, 29, 69},
	} {
		high, low := tenant("high", 0, 0, 0, false), tenant("low", test.low, 0, 0, true)
		high.Limit.Priority = limiter.PriorityHigh
		var past map[string]Past
		var states map[string]limiter.CoreState
		var of [2]float64
		const warm, measured = 60, 240
		for step := range warm + measured {
			lows := 100.0 // its demand
			switch s := states["low"]; {
			case s.Blocked:
				lows = max(1, float64(s.ElasticPercent))
			case s.Contended && test.low > 0:
				lows = float64(test.low)
			}
			high.Busy, low.Busy = test.demand, lows
			if high.Busy+low.Busy > 100 {
				high.Busy = max(100-low.Busy, min(50, high.Busy))
				low.Busy = 100 - high.Busy
			}
			if step >= warm {
				of[0] += high.Busy / measured
				of[1] += low.Busy / measured
			}
			past, states = Decide(past, []Tenant{high, low}, 0, 1)
			require.False(t, states["high"].Blocked)
		}
		t.Logf("%s: it wants %.0f %%, and has %.1f %%; the GPU is used to %.1f %%", name, test.demand, of[0], of[0]+of[1])
		assert.GreaterOrEqual(t, of[0], test.highAtLeast, "%s: it has %.1f %%, the other %.1f %%", name, of[0], of[1])
		assert.GreaterOrEqual(t, of[0]+of[1], test.leastOfTheGPU, "%s: it has %.1f %%, the other %.1f %%", name, of[0], of[1])
	}
}

// One that wants all of a sudden has nearly all within three steps.
func TestPriorityComesSoon(t *testing.T) {
	high, low := tenant("high", 0, 0, 5, false), tenant("low", 0, 0, 80, true)
	high.Limit.Priority = limiter.PriorityHigh
	past, states := steps(40, nil, 0, high, low)
	require.Greater(t, states["low"].ElasticPercent, uint16(80))
	high.Busy, low.Busy = 50, 50
	_, states = steps(3, past, 0, high, low)
	assert.LessOrEqual(t, states["low"].ElasticPercent, uint16(2))
	assert.True(t, states["low"].Blocked)
}

// GPU is a model of two tenants with estimates that are wrong by a factor: what a
// tenant gets is its share times its correction over that.
func TestCorrectionConverges(t *testing.T) {
	for _, test := range []struct {
		share  uint32
		factor float64 // estimate over truth
	}{{30, 1}, {30, 2}, {30, 3.5}, {30, 0.5}, {30, 0.3}, {70, 1.4}, {5, 2}, {5, 0.5}, {10, 3}, {90, 1.1}, {50, 2}} {
		var past map[string]Past
		var states map[string]limiter.CoreState
		k, got := 1.0, 0.0
		for range 60 {
			got = min(100, float64(test.share)*k/test.factor)
			past, states = Decide(past, []Tenant{tenant("a", test.share, 0, math.Round(got), true)}, 20, 1)
			k = 1
			if c := states["a"].Correction; c != 0 {
				k = float64(c) / 1000
			}
		}
		assert.InDelta(t, float64(test.share), got, 2, "share %d, factor %v, correction %v", test.share, test.factor, k)
	}
}

// Two that have a full GPU between them, and want more: neither rises, because there is
// nothing to be had, and only the one with too much loses time.
func TestCorrectionsDoNotWindUpTogether(t *testing.T) {
	_, states := steps(200, nil, 0, tenant("a", 50, 0, 48, true), tenant("b", 50, 0, 49, true))
	assert.Zero(t, states["a"].Correction)
	assert.Zero(t, states["b"].Correction)
	_, states = steps(10, nil, 0, tenant("a", 50, 0, 41, true), tenant("b", 50, 0, 57, true))
	assert.Zero(t, states["a"].Correction)
	assert.Less(t, states["b"].Correction, uint16(1000))
	_, states = steps(10, nil, 0, tenant("a", 50, 0, 41, true), tenant("b", 50, 0, 50, true))
	assert.Greater(t, states["a"].Correction, uint16(1000), "time is free")
	free := tenant("b", 50, 0, 59, true)
	free.Limit.Policy = limiter.PolicyDisable
	_, states = steps(10, nil, 0, tenant("a", 50, 0, 41, true), free)
	assert.Greater(t, states["a"].Correction, uint16(1000), "a container without a share yields")
	_, states = steps(10, nil, 59, tenant("a", 50, 0, 41, true))
	assert.Greater(t, states["a"].Correction, uint16(1000), "and so does a stranger")
}

func TestCorrectionStandsStill(t *testing.T) {
	force := tenant("a", 30, 0, 10, false)
	force.Limit.Policy = limiter.PolicyForce
	wants := func(t Tenant) Tenant { t.Wants = true; return t }
	for name, test := range map[string]struct {
		tenant    Tenant
		strangers float64
		want      uint16
	}{
		"it wants no more":          {tenant("a", 30, 0, 10, false), 50, 0},
		"within the dead band":      {tenant("a", 30, 0, 29, true), 50, 0},
		"nothing is enforced":       {tenant("a", 30, 0, 90, true), 0, 0},
		"forced, and wants no more": {force, 0, 0},
		"wound up as far as it may": {wants(force), 0, limiter.MaxCorrection},
		"down as far as it may":     {tenant("a", 5, 0, 100, true), 50, limiter.MinCorrection},
	} {
		_, states := steps(100, nil, test.strangers, test.tenant)
		assert.Equal(t, test.want, states["a"].Correction, name)
	}
	// What others' turns had inflated is forgotten with the others.
	past, states := steps(100, nil, 50, wants(force))
	require.EqualValues(t, limiter.MaxCorrection, states["a"].Correction)
	force.Busy = 30
	_, states = steps(activeSteps+2, past, 0, force)
	assert.Zero(t, states["a"].Correction)
}

// Its time without others is unrelated to its share, and what it had queued then
// still runs for some steps.
func TestCorrectionWaitsForOldWork(t *testing.T) {
	a := tenant("a", 30, 0, 90, true)
	past, _ := steps(10, nil, 0, a)
	for i := range settlingSteps {
		var states map[string]limiter.CoreState
		past, states = steps(1, past, 50, a)
		require.True(t, states["a"].Contended)
		assert.Zero(t, states["a"].Correction, "step %d after others came", i)
	}
	_, states := steps(1, past, 50, a)
	assert.NotZero(t, states["a"].Correction, "then it is corrected")
}

// Of a container that is held back for one of higher priority the share is no measure:
// afterwards it has no more than that.
func TestCorrectionStandsStillWhileBlocked(t *testing.T) {
	a, b, high := tenant("a", 30, 0, 1, true), tenant("b", 60, 0, 1, true), tenant("high", 0, 0, 80, false)
	high.Limit.Priority = limiter.PriorityHigh
	past, states := steps(30, nil, 0, a, b, high, tenant("soft", 20, 80, 1, true))
	require.True(t, states["a"].Blocked)
	assert.Zero(t, states["a"].Correction)
	assert.EqualValues(t, 20, states["soft"].ElasticPercent, "what is left, up to its hard share")
	a.Busy, b.Busy, high.Busy = 30, 60, 0
	_, states = steps(activeSteps+settlingSteps, past, 0, a, b, high)
	require.Equal(t, limiter.CoreState{Contended: true}, states["a"])
	require.Equal(t, limiter.CoreState{Contended: true}, states["b"])
}

func TestElastic(t *testing.T) {
	a := tenant("a", 30, 80, 80, true)
	_, states := steps(1, nil, 0, a)
	assert.Equal(t, limiter.CoreState{}, states["a"], "without others its ceiling is the soft one")

	a.Busy = 30
	b := tenant("b", 20, 0, 20, false)
	past, states := steps(1, nil, 0, a, b)
	assert.EqualValues(t, 30, states["a"].ElasticPercent, "it begins at the hard share")
	past, states = steps(3, past, 0, a, b)
	assert.EqualValues(t, 39, states["a"].ElasticPercent, "and increases while time is free")
	a.Busy = 39
	_, states = steps(100, past, 0, a, b)
	assert.EqualValues(t, 80, states["a"].ElasticPercent, "up to the soft one")
	past, states = steps(100, past, 0, a, b)
	require.EqualValues(t, 80, states["a"].ElasticPercent)

	a.Busy, b.Busy = 88, 8 // b comes back and lacks what is its
	past, states = steps(3, past, 0, a, b)
	assert.LessOrEqual(t, states["a"].ElasticPercent, uint16(55))
	_, states = steps(10, past, 0, a, b)
	assert.EqualValues(t, 30, states["a"].ElasticPercent, "down to the hard share and no further")

	a.Busy, b.Busy = 78, 20
	_, states = steps(10, past, 0, a, b)
	assert.GreaterOrEqual(t, states["a"].ElasticPercent, uint16(30), "b has its share")

	free := tenant("free", 0, 0, 10, false)
	past, _ = steps(20, nil, 0, tenant("a", 30, 80, 40, true), free)
	a.Busy = 88
	_, states = steps(20, past, 0, a, free)
	assert.EqualValues(t, 30, states["a"].ElasticPercent, "a container without a limit may use all")
}

// A container without a share gets the remainder of the shares in use, and all while none is in use.
func TestWithoutAShareWhatSharesLeave(t *testing.T) {
	none := func(id string, busy float64) Tenant { return tenant(id, 0, 0, busy, true) }
	for name, test := range map[string]struct {
		tenants []Tenant
		want    uint16 // of the first tenant; 0: not limited
	}{
		"beside one share":                    {[]Tenant{none("n", 50), tenant("a", 80, 0, 50, true)}, 20},
		"beside two shares":                   {[]Tenant{none("n", 50), tenant("a", 40, 0, 25, true), tenant("b", 30, 0, 25, true)}, 30},
		"divided among those without":         {[]Tenant{none("n", 25), none("m", 25), tenant("a", 60, 0, 50, true)}, 20},
		"the floor if nothing is left":        {[]Tenant{none("n", 50), tenant("a", 60, 0, 25, true), tenant("b", 40, 0, 25, true)}, 5},
		"beside a share of 100 %":             {[]Tenant{none("n", 50), tenant("a", 100, 0, 50, true)}, 5},
		"an idle share is not in use":         {[]Tenant{none("n", 90), tenant("a", 80, 0, 0, false)}, 0},
		"beside another without":              {[]Tenant{none("n", 50), none("m", 50)}, 0},
		"beside a share that is not in force": {[]Tenant{none("n", 50), {ID: "a", Busy: 50, Limit: limiter.DeviceLimit{CorePercent: 80, Policy: limiter.PolicyDisable}}}, 0},
	} {
		var states map[string]limiter.CoreState
		past := map[string]Past(nil)
		for range 3 {
			past, states = Decide(past, test.tenants, 0, 5)
		}
		assert.Equal(t, test.want, states["n"].ElasticPercent, name)
		assert.Equal(t, test.want > 0, states["n"].Contended, name)
	}
	disabled := none("n", 50)
	disabled.Limit.Policy = limiter.PolicyDisable
	_, states := steps(3, nil, 0, disabled, tenant("a", 80, 0, 50, true))
	assert.Equal(t, limiter.CoreState{}, states["n"], "without enforcement of shares")
	high := none("n", 50)
	high.Limit.Priority = limiter.PriorityHigh
	_, states = steps(3, nil, 0, high, tenant("a", 80, 0, 50, true))
	assert.Equal(t, limiter.CoreState{}, states["n"], "a share of lower priority limits no other")

	past, states := steps(30, nil, 0, none("n", 60), tenant("a", 80, 0, 10, false))
	require.Greater(t, states["n"].ElasticPercent, uint16(60), "uses what a leaves idle")
	_, states = steps(10, past, 0, none("n", 60), tenant("a", 80, 0, 40, true))
	assert.LessOrEqual(t, states["n"].ElasticPercent, uint16(21), "gives it back when a needs it")
}

// Each decision can be written, for all values from NVML and the containers.
func TestStatesAreValid(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Dir(limiter.LimitsPath(dir)), 0o755))
	require.NoError(t, limiter.WriteLimits(limiter.LimitsPath(dir), limiter.Limits{Devices: []limiter.DeviceLimit{
		{UUID: "GPU-00000001-5151-4000-8000-000000000001", MemoryLimitBytes: 1, CorePercent: 30, CoreSoftPercent: 80},
	}}))
	var past map[string]Past
	var states map[string]limiter.CoreState
	for i := range 2000 {
		busy := []float64{0, 100, 1e9, 30, 5}[i%5]
		past, states = Decide(past, []Tenant{tenant("a", 30, 80, busy, i%3 == 0)}, float64(i%7)*20, 1)
		require.NoError(t, limiter.UpdateCores(dir, []limiter.CoreState{states["a"]}))
	}
}
