package feedback

import (
	"maps"
	"slices"

	"github.com/gpuslice/gpuslice/limiter"
)

// Peer is a container with turns on a GPU.
type Peer struct {
	limiter.Turn
	// Weight is its share in percent, or what it has without one.
	Weight float64
	Low    bool
	// Free: nothing limits its compute time.
	Free bool
}

// Excess is a container that NVML sees at work for much longer than it is due, while others want the GPU and have less
// than they are due. Its limiter is changed, or publishes false words, or its kernels can't be held.
type Excess struct {
	GPU, Container string
	// Of the GPU's time, in percent, in the last ExcessSteps.
	Used, Due float64
}

const (
	// ExcessSteps is the length of the comparison, in steps.
	ExcessSteps = 30
	// excessPoints is what NVML's samples are not wrong by over ExcessSteps.
	excessPoints = 10
	// lackPoints: another container that has so much less than it is due waits.
	lackPoints = 5
	// lackPart of the time the other one has work under way. One that pauses between launches loses time to an honest one.
	lackPart  = 0.98
	lowWeight = 1
)

// excesses are the last steps, by GPU and container.
type excesses map[string]excessesOf

type excessesOf map[string][]excessStep

type excessStep struct {
	used, due  float64
	seen, busy uint64 // of its words
}

// step adds NVML's figures and the words of the containers of the same moment. It does not trust the words of one container:
// another must want the GPU and launch all the time, and have too little by NVML.
func (x *excesses) step(now uint64, busy map[string]map[string]float64, peers map[string]map[string]Peer) (found []Excess) {
	next := excesses{}
	for _, gpu := range slices.Sorted(maps.Keys(busy)) {
		next[gpu] = excessesOf{}
		due := dueOf(now, busy[gpu], peers[gpu])
		for _, id := range slices.Sorted(maps.Keys(peers[gpu])) {
			step := excessStep{busy[gpu][id], 100, now, busyAt(now, peers[gpu][id].Turn)}
			if (*x)[gpu].lack(now, id, busy[gpu], due, peers[gpu]) {
				step.due = due[id]
			}
			steps := append(slices.Clone((*x)[gpu][id]), step)
			steps = steps[max(0, len(steps)-ExcessSteps):]
			next[gpu][id] = steps
			if len(steps) < ExcessSteps || peers[gpu][id].Free {
				continue
			}
			var mean excessStep
			for _, s := range steps {
				mean.used += s.used / ExcessSteps
				mean.due += s.due / ExcessSteps
			}
			if mean.used > mean.due+excessPoints {
				found = append(found, Excess{gpu, id, mean.used, mean.due})
			}
		}
	}
	*x = next
	return found
}

// dueOf divides the GPU by the weights of those that want it or have used it. What one wants is its own word.
func dueOf(now uint64, busy map[string]float64, peers map[string]Peer) map[string]float64 {
	wants := func(id string) bool { return busy[id] > 0 || peers[id].WantUntil > now }
	high := false
	for id, p := range peers {
		high = high || !p.Low && wants(id)
	}
	weight := func(p Peer) float64 {
		if p.Low && high {
			return lowWeight
		}
		return p.Weight
	}
	due := make(map[string]float64, len(peers))
	for id, p := range peers {
		all := weight(p)
		for other, o := range peers {
			if other != id && wants(other) {
				all += weight(o)
			}
		}
		if all > 0 {
			due[id] = 100 * weight(p) / all
		}
	}
	return due
}

func (x excessesOf) lack(now uint64, than string, busy, due map[string]float64, peers map[string]Peer) bool {
	for id, p := range peers {
		if id != than && p.WantUntil > now && p.Lag > int64(lackTime) && busy[id] < due[id]-lackPoints && x.launches(now, id, p.Turn) {
			return true
		}
	}
	return false
}

// launches reports whether the container had work under way all the time since the first of its steps.
func (x excessesOf) launches(now uint64, id string, t limiter.Turn) bool {
	if len(x[id]) == 0 {
		return false
	}
	first := x[id][0]
	return float64(busyAt(now, t)-first.busy) >= lackPart*float64(now-first.seen)
}
