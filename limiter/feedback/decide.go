package feedback

import (
	"math"
	"slices"

	"github.com/gpuslice/gpuslice/limiter"
)

// Tenant is a container on one GPU in the last step.
type Tenant struct {
	ID    string
	Limit limiter.DeviceLimit
	// Busy is in percent of the GPU's time, from NVML.
	Busy float64
	// Wants: launches waited for their share. The container reports it.
	Wants bool
}

// Past is the state of a container on a GPU between steps.
type Past struct {
	// Busy is the smoothed percentage.
	Busy float64
	// Idle is the number of steps since its last work.
	Idle int
	// Correction is the factor of its share; Elastic the percentage of a soft ceiling under contention.
	Correction, Elastic float64
	// Rest is its percentage while a container of higher priority is active.
	Rest float64
	// Settling is the number of steps since Contended changed, without being blocked.
	Contended bool
	Settling  int
}

// stranger is the ID for processes without a claim.
const stranger = ""

const (
	activePercent = 0.5 // NVML reports whole percents
	activeSteps   = 5   // a container is active for so long after its last work
	smoothing     = 0.4 // the weight of the newest step
	deadBand      = 1.0 // percent of the GPU
	gain          = 0.5 // of the relative error, per step
	mostChange    = 0.3 // per step
	settlingSteps = 3   // work that was queued before still runs
	fullPercent   = 95.0
	brimPercent   = 97.0 // NVML's whole percents are rounded down

	leastRest   = 1.0  // percent, so that no container hangs
	roomPercent = 90.0 // lower priorities get what remains below this
	moreRest    = 5.0  // per step
	lessRest    = 0.25
)

const (
	leastCorrection = limiter.MinCorrection / 1000.0
	mostCorrection  = limiter.MaxCorrection / 1000.0
)

// Decide is one step on one GPU: it returns the next past and the states to write. strangers is the percentage of
// processes without a claim. floor is Config.UnlimitedFloor.
func Decide(past map[string]Past, granted []Tenant, strangers, floor float64) (map[string]Past, map[string]limiter.CoreState) {
	next := make(map[string]Past, len(granted)+1)
	total := strangers
	next[stranger] = see(past, stranger, strangers)
	for _, t := range granted {
		next[t.ID] = see(past, t.ID, t.Busy)
		total += t.Busy
	}
	tenants := withRemainders(granted, next, floor)
	states := make(map[string]limiter.CoreState, len(tenants))
	for i, t := range tenants {
		p := next[t.ID]
		others := othersOf(t, tenants, next)
		p.Elastic = elastic(p, t, others, total)
		p.Rest = rest(p, granted[i], others, total)
		p.Settling = settling(p, others)
		p.Correction = correction(p, t, others, total)
		p.Contended = others.active
		next[t.ID] = p
		states[t.ID] = state(p, t, others)
	}
	return next, states
}

func see(past map[string]Past, id string, busy float64) Past {
	p, known := past[id]
	if !known {
		p = Past{Idle: activeSteps + 1, Correction: 1, Busy: busy}
	}
	p.Busy += smoothing * (busy - p.Busy)
	p.Idle++
	if busy >= activePercent {
		p.Idle = 0
	}
	return p
}

func (p Past) active() bool { return p.Idle <= activeSteps }

// withRemainders gives each tenant without a share the remainder of the shares in use, with a ceiling of 100 %. It is not
// limited while no share of its priority or a higher one is in use.
func withRemainders(tenants []Tenant, now map[string]Past, floor float64) []Tenant {
	with := slices.Clone(tenants)
	for i, t := range tenants {
		if !shareless(t.Limit) {
			continue
		}
		used, takers := 0.0, 1.0
		for _, other := range tenants {
			switch {
			case other.ID == t.ID || !now[other.ID].active() || other.Limit.Priority > t.Limit.Priority:
			case shareless(other.Limit):
				takers++
			case other.Limit.Policy != limiter.PolicyDisable:
				used += float64(other.Limit.CorePercent)
			}
		}
		if used > 0 {
			with[i].Limit.CorePercent = uint32(max(floor, leastRest, (100-used)/takers))
			with[i].Limit.CoreSoftPercent = 100
		}
	}
	return with
}

func shareless(l limiter.DeviceLimit) bool {
	return l.Policy != limiter.PolicyDisable && l.CorePercent == 0
}

type others struct {
	active bool // one is active
	higher bool // one of higher priority is
	urgent bool // one of higher priority has less than its share
	hungry bool // one has less than its share
	free   bool // one has no limit
}

func othersOf(t Tenant, tenants []Tenant, now map[string]Past) others {
	o := others{active: now[stranger].active(), free: now[stranger].active()}
	for _, other := range tenants {
		p := now[other.ID]
		if other.ID == t.ID || !p.active() {
			continue
		}
		o.active = true
		o.free = o.free || !limited(other.Limit)
		higher, hungry := other.Limit.Priority < t.Limit.Priority, other.Busy < entitled(other.Limit)-2*deadBand
		o.higher = o.higher || higher
		o.urgent = o.urgent || higher && hungry
		o.hungry = o.hungry || p.Busy < entitled(other.Limit)-2*deadBand
	}
	return o
}

func entitled(l limiter.DeviceLimit) float64 {
	if !limited(l) {
		return 100
	}
	return float64(l.CorePercent)
}

func limited(l limiter.DeviceLimit) bool {
	return l.Policy != limiter.PolicyDisable && l.CorePercent > 0 && l.CorePercent < 100
}

func soft(l limiter.DeviceLimit) bool {
	return limited(l) && l.CoreSoftPercent > l.CorePercent
}

// target is the share that is enforced now, as in cores.c.
func target(p Past, t Tenant, contended bool) (percent float64, enforced bool) {
	switch {
	case !limited(t.Limit):
		return 0, false
	case soft(t.Limit) && !contended:
		return float64(t.Limit.CoreSoftPercent), t.Limit.CoreSoftPercent < 100
	case soft(t.Limit):
		return p.Elastic, p.Elastic < 100
	default:
		return float64(t.Limit.CorePercent), contended || t.Limit.Policy == limiter.PolicyForce
	}
}

// elastic increases additively while there is free time that the tenant wants, and decreases multiplicatively while another
// lacks its share. It begins at the hard share when others come, and after being blocked.
func elastic(p Past, t Tenant, o others, total float64) float64 {
	hard, ceiling := float64(t.Limit.CorePercent), float64(t.Limit.CoreSoftPercent)
	if !soft(t.Limit) || !o.active || o.higher || !p.Contended || p.Elastic < hard {
		return hard
	}
	switch {
	case o.hungry && total >= fullPercent:
		return math.Floor(hard + (p.Elastic-hard)/2)
	case t.Wants && total < fullPercent:
		return min(ceiling, p.Elastic+max(1, math.Floor(hard/10)))
	default:
		return min(ceiling, p.Elastic)
	}
}

// rest is the time that a blocked container has. It increases on a GPU with free time, and decreases quickly on a full one
// while a container of higher priority can lack something.
func rest(p Past, t Tenant, o others, total float64) float64 {
	switch {
	case !o.higher || p.Rest < leastRest:
		return leastRest
	case total >= fullPercent && o.urgent:
		return max(leastRest, p.Rest*lessRest)
	case total < roomPercent && (t.Wants || t.Busy >= p.Rest-deadBand):
		return min(p.Rest+min(moreRest, roomPercent-total), entitled(t.Limit))
	}
	return min(p.Rest, entitled(t.Limit))
}

// settling counts the steps since others came: earlier launches are still queued.
func settling(p Past, o others) int {
	if p.Contended != o.active || o.higher {
		return 0
	}
	return min(p.Settling+1, settlingSteps)
}

// correction integrates the relative error between the use and the share. It stays in the dead band, where
// nothing is enforced, and where the tenant wants less (wind-up). On a GPU that is full of limited tenants it
// does not rise, because all would rise forever: the correction of the one with too much falls.
func correction(p Past, t Tenant, o others, total float64) float64 {
	if p.Contended && !o.active {
		p.Correction = min(p.Correction, 1) // the error by others is gone
	}
	percent, enforced := target(p, t, o.active)
	lack := percent - p.Busy
	if lack > 0 && o.active && !o.free && total >= brimPercent {
		return p.Correction
	}
	if !enforced || p.Settling < settlingSteps || math.Abs(lack) <= deadBand || (lack > 0 && !t.Wants) {
		return p.Correction
	}
	if lack > percent/2 && p.Correction < 1 {
		// It was lowered mostly for work that was queued before.
		return min(2*p.Correction, 1)
	}
	change := min(max(gain*lack/percent, -mostChange), mostChange)
	return min(max(p.Correction*(1+change), leastCorrection), mostCorrection)
}

// state rounds small differences away, so that the file is not written.
func state(p Past, t Tenant, o others) limiter.CoreState {
	s := limiter.CoreState{Blocked: o.higher}
	if s.Blocked && p.Rest > leastRest {
		s.ElasticPercent = uint16(p.Rest)
	}
	if !limited(t.Limit) {
		return s
	}
	s.Contended = o.active
	if thousandths := uint16(math.Round(p.Correction*100) * 10); thousandths != 1000 {
		s.Correction = min(max(thousandths, limiter.MinCorrection), limiter.MaxCorrection)
	}
	if soft(t.Limit) && o.active && !s.Blocked {
		s.ElasticPercent = uint16(p.Elastic)
	}
	return s
}
