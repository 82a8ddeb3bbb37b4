package feedback

import (
	"math"
	"slices"

	"github.com/gpuslice/gpuslice/limiter"
)

// Tenant is a container on one GPU, as it was seen over the last step.
type Tenant struct {
	ID    string
	Limit limiter.DeviceLimit
	// Busy is what NVML saw of it, in percent of the GPU's time.
	Busy float64
	// Wants says that launches waited for their share: its own word.
	Wants bool
}

// Past is what Decide remembers of a container on a GPU from step to step.
type Past struct {
	// Busy is the busy percentage smoothed over some steps.
	Busy float64
	// Idle is how many steps ago it was last seen at work.
	Idle int
	// Correction is the factor of its share, and Elastic its share under contention in
	// percent if it has a soft ceiling.
	Correction, Elastic float64
	// Rest is what it has, in percent, while it stands back for one of higher priority.
	Rest float64
	// Contended is what was last decided, and Settling for how many steps it has been so
	// without being blocked.
	Contended bool
	Settling  int
}

// stranger is whoever uses a GPU without being a container of ours.
const stranger = ""

const (
	activePercent = 0.5 // NVML says whole percents, and a mean of several
	activeSteps   = 5   // so long after its last work a container still counts as active
	smoothing     = 0.4 // the weight of the newest step
	deadBand      = 1.0 // percent of the GPU
	gain          = 0.5 // of the relative error, a step
	mostChange    = 0.3 // a step
	settlingSteps = 3   // after others have come: what was queued before still runs
	fullPercent   = 95.0
	brimPercent   = 97.0 // NVML's whole percents are rounded down

	leastRest   = 1.0  // percent, that nobody hangs
	roomPercent = 90.0 // up to here what is left by those of higher priority is given to others
	moreRest    = 5.0  // a step
	lessRest    = 0.25
)

const (
	leastCorrection = limiter.MinCorrection / 1000.0
	mostCorrection  = limiter.MaxCorrection / 1000.0
)

// Decide is one step on one GPU: what it remembers, and what each tenant is told.
// strangers is the part of the GPU's time that processes of no tenant had. floor is the
// minimum percentage for a tenant without a share while others use theirs.
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

// see takes one step's observation in.
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

// withRemainders gives each tenant without a share the remainder of the shares in use, as a
// share with a ceiling of 100 %: it may use time that tenants with a share leave idle. While
// no share of its priority or a higher one is in use, it stays without.
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

// others are all but one tenant.
type others struct {
	active bool // somebody
	higher bool // somebody of higher priority
	urgent bool // who has less than he may have at any time
	hungry bool // somebody who has less than he may have at any time
	free   bool // somebody whose use no share bounds
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

// entitled is a container's hard share; whoever has no limit may have all.
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

// target is the share that is enforced now; false: none is. It is what the library's
// rate.c makes of the same record.
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

// elastic is additive increase while there is room that the tenant wants, and
// multiplicative decrease as soon as somebody else lacks what is his: the way to
// share what nobody owns. It begins at the hard share whenever others come, and after
// it was blocked.
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

// rest is what a container of lower priority has while one of higher priority is at work:
// what that one leaves. On a GPU with room it grows, up to what the container would have
// otherwise; on a full one, while any of higher priority may lack something, next to all
// of it is taken away. So the higher one goes first within a few steps, whatever it begins, and
// a GPU that it does not fill is not left idle.
func rest(p Past, t Tenant, o others, total float64) float64 {
	switch {
	case !o.higher || p.Rest < leastRest:
		return leastRest
	case total >= fullPercent && o.urgent:
		return max(leastRest, p.Rest*lessRest)
	case total < roomPercent && (t.Wants || t.Busy >= p.Rest-deadBand):
		return min(p.Rest+min(moreRest, roomPercent-total), share(t.Limit))
	}
	return min(p.Rest, share(t.Limit))
}

// share is what a container has on a contended GPU, but for a soft ceiling.
func share(l limiter.DeviceLimit) float64 {
	if !limited(l) {
		return 100
	}
	return max(leastRest, float64(l.CorePercent))
}

// settling counts the steps since others came. A container that was forced to its share
// all the time has nothing queued that it had not a right to, but others have. One that
// is blocked has next to nothing for another reason than what its share is worth.
func settling(p Past, o others) int {
	if p.Contended != o.active || o.higher {
		return 0
	}
	return min(p.Settling+1, settlingSteps)
}

// correction integrates the error of what the tenant had against what it may have,
// relative to it, so that the gain hangs on no GPU's size. It stands still within
// the dead band, where nothing is enforced, and where the tenant has less because it
// wants less: that would wind it up. And it does not rise on a GPU that is full of others
// who are held to their shares: what one of them has too much his own correction takes,
// and if none has, both would rise for ever.
func correction(p Past, t Tenant, o others, total float64) float64 {
	if p.Contended && !o.active {
		p.Correction = min(p.Correction, 1) // what others' turns inflated is gone with them
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
		// It was lowered for what was queued before, mostly: back to what is right by itself.
		return min(2*p.Correction, 1)
	}
	change := min(max(gain*lack/percent, -mostChange), mostChange)
	return min(max(p.Correction*(1+change), leastCorrection), mostCorrection)
}

// state is what is written; differences that mean nothing are rounded away, so that
// the file is left alone.
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
