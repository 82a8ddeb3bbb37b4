package feedback

import (
	"maps"
	"time"
)

// Use is the containers' use of the GPUs, from NVML. It is read-only.
type Use struct {
	At time.Time
	// Percent is by GPU and container over the last steps. GPUs that can't report it, and idle containers, are missing.
	Percent map[string]map[string]float64
	// Worked is the time of the last work, by GPU and container.
	Worked map[string]map[string]time.Time
}

// useWeight is the weight of the newest step; less than useLeast counts as none.
const (
	useWeight = 0.5
	useLeast  = 0.5
)

// Use returns the result of the last step; nil: none. It is safe for concurrent use.
func (l *Loop) Use() *Use { return l.use.Load() }

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
