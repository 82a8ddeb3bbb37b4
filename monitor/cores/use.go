package cores

import (
	"maps"
	"time"
)

// Use is what NVML saw containers have of the node's cards. It is not to be changed.
type Use struct {
	// At is when it was seen.
	At time.Time
	// Percent is of a card's time, by card and container, over the last few steps: NVML's
	// samples come less often than these. A card that can't tell isn't in it; a container
	// that had none isn't either.
	Percent map[string]map[string]float64
	// Worked is when a container was last seen at work, by card and container.
	Worked map[string]map[string]time.Time
}

// useWeight is that of the newest step, and useLeast what counts as none.
const (
	useWeight = 0.5
	useLeast  = 0.5
)

// Use is what was seen in the last step; nil before the first, and after one that failed.
// It may be called by whomever.
func (l *Loop) Use() *Use { return l.use.Load() }

// next is what is known after one more step, for containers that are still there.
func (u *Use) next(now time.Time, busy map[string]map[string]float64, there map[string]string) *Use {
	if u == nil {
		u = &Use{}
	}
	n := &Use{At: now, Percent: make(map[string]map[string]float64, len(busy)), Worked: make(map[string]map[string]time.Time, len(busy))}
	for card, of := range u.Worked {
		n.Worked[card] = maps.Clone(of)
		maps.DeleteFunc(n.Worked[card], func(id string, _ time.Time) bool { _, ok := there[id]; return !ok })
	}
	for card, of := range busy {
		percent, worked := map[string]float64{}, n.Worked[card]
		if worked == nil {
			worked = map[string]time.Time{}
		}
		for id := range there {
			had, now := u.Percent[card][id], of[id]
			if p := had + useWeight*(now-had); p >= useLeast {
				percent[id] = p
			}
		}
		for id, p := range of {
			if _, ok := there[id]; ok && p > 0 {
				worked[id] = n.At
			}
		}
		n.Percent[card], n.Worked[card] = percent, worked
	}
	return n
}
