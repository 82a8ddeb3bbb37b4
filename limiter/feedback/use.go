package feedback

import (
	"maps"
	"time"
)

// Use is what NVML saw containers have of the node's GPUs. It is not to be changed.
type Use struct {
	// At is when it was seen.
	At time.Time
	// Percent is of a GPU's time, by GPU and container, over the last few steps: NVML's
	// samples come less often than these. A GPU that can't tell isn't in it; a container
	// that had none isn't either.
	Percent map[string]map[string]float64
	// Worked is when a container was last seen at work, by GPU and container.
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
	for gpu, of := range u.Worked {
		n.Worked[gpu] = maps.Clone(of)
		maps.DeleteFunc(n.Worked[gpu], func(id string, _ time.Time) bool { _, ok := there[id]; return !ok })
	}
	for gpu, of := range busy {
		percent, worked := map[string]float64{}, n.Worked[gpu]
		if worked == nil {
			worked = map[string]time.Time{}
		}
		for id := range there {
			had, now := u.Percent[gpu][id], of[id]
			if p := had + useWeight*(now-had); p >= useLeast {
				percent[id] = p
			}
		}
		for id, p := range of {
			if _, ok := there[id]; ok && p > 0 {
				worked[id] = n.At
			}
		}
		n.Percent[gpu], n.Worked[gpu] = percent, worked
	}
	return n
}
