package feedback

import (
	"slices"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// residueLooks is the number of steps in a row with a residue: the driver and the charges are not read at the same moment.
const residueLooks = 3

type residues map[string]map[string][]uint64

func (r residues) see(container, gpu string, observed, charged uint64) uint64 {
	gpus := r[container]
	if gpus == nil {
		gpus = map[string][]uint64{}
		r[container] = gpus
	}
	beyond := uint64(0)
	if observed > charged {
		beyond = observed - charged
	}
	looks := append(gpus[gpu], beyond)
	if len(looks) > residueLooks {
		looks = looks[len(looks)-residueLooks:]
	}
	gpus[gpu] = looks
	if len(looks) < residueLooks {
		return 0
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

// GPUs without an answer of the driver keep the last residue.
func (l *Loop) residue(m *member, observed map[string]map[string]uint64) {
	var usage limiter.Usage
	for i, d := range m.limits.Devices {
		of, known := observed[d.UUID]
		if !known {
			continue
		}
		if of[m.ID] > 0 && usage.Devices == nil {
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
			charged -= min(charged, usage.Devices[i].HeldBytes)
		}
		m.states[i].ResidueBytes = l.beyond.see(m.ID, d.UUID, of[m.ID], charged)
	}
}
