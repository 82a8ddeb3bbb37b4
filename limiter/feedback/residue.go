package feedback

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// residueLooks is the number of steps in a row with a residue: the driver and the charges are not read at the same moment.
const residueLooks = 3

type residues map[string]map[string][]uint64

// see returns the residue after one more look. In the first looks, as after a start of the agent, it can only shrink: it is
// at most what the limits file has.
func (r residues) see(container, gpu string, observed, charged, written uint64) uint64 {
	gpus := r[container]
	if gpus == nil {
		gpus = map[string][]uint64{}
		r[container] = gpus
	}
	looks := append(gpus[gpu], observed-min(observed, charged))
	looks = looks[max(0, len(looks)-residueLooks):]
	gpus[gpu] = looks
	if len(looks) < residueLooks {
		return min(written, slices.Min(looks))
	}
	return slices.Min(looks)
}

func observe(memories map[string][]nvidia.ProcessMemory, owners map[int]string) map[string]map[string]uint64 {
	sums := make(map[string]map[string]uint64, len(memories))
	for gpu, of := range memories {
		sums[gpu] = map[string]uint64{}
		for _, m := range of {
			if id := owners[m.PID]; id != "" {
				sums[gpu][id] += m.Bytes
			}
		}
	}
	return sums
}

// GPUs without an answer of the driver keep the last residue. counted is the driver's count of the container's control group.
func (l *Loop) residue(m *member, observed map[string]map[string]uint64, counted map[string]uint64) {
	var usage limiter.Usage
	for i, d := range m.limits.Devices {
		of, known := observed[d.UUID]
		bytes, ofGroup := counted[d.UUID]
		if !ofGroup {
			bytes = of[m.ID]
		}
		if !known && !ofGroup {
			continue
		}
		if bytes > 0 && usage.Devices == nil {
			var err error
			if usage, err = limiter.ReadUsage(limiter.UsagePath(m.Dir)); err != nil {
				// Damaged by its container: its limiter counts nothing either.
				usage.Devices = make([]limiter.DeviceUsage, len(m.limits.Devices))
			}
		}
		charged := uint64(0)
		if i < len(usage.Devices) {
			// The driver counts neither managed memory nor exports of ended processes for a process.
			charged = usage.Devices[i].UsedBytes
			charged -= min(charged, usage.Devices[i].SpilledBytes)
			if !ofGroup {
				charged -= min(charged, usage.Devices[i].HeldBytes)
			}
		}
		m.residue[i] = l.beyond.see(m.ID, d.UUID, bytes, charged, m.residue[i])
	}
}

// Use is the containers' use of the GPUs, from NVML, or else from their limiters. It is read-only.
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
	u = cmp.Or(u, &Use{})
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
