package feedback

import (
	"slices"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// residueLooks is in how many looks in a row the driver has to see more than is charged:
// the two are not read at one moment, and what is allocated or freed between them is
// no residue. What is gone is believed at once.
const residueLooks = 3

// residues remembers, by container and GPU, what was seen beyond what is charged.
type residues map[string]map[string][]uint64

// see takes a look at a container on a GPU in: what the driver says that its processes
// have, and what they have charged. The answer is the residue.
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

// observe adds up what the driver says of processes, by GPU and container. Of processes
// that are nobody's it says nothing here: they are on nobody's account.
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

// residue sets what of each GPU a container has beyond what it has charged. GPUs that
// the driver tells nothing of keep what was last written.
func (l *Loop) residue(m *member, observed map[string]map[string]uint64) {
	var usage limiter.Usage
	for i, d := range m.limits.Devices {
		of, told := observed[d.UUID]
		if !told {
			continue
		}
		if of[m.ID] > 0 && usage.Devices == nil {
			var err error
			if usage, err = limiter.ReadUsage(limiter.UsagePath(m.Dir)); err != nil {
				// Spoilt by its container. Its own limiter counts nothing then either, or
				// denies: the driver's word is all there is.
				usage.Devices = make([]limiter.DeviceUsage, len(m.limits.Devices))
			}
		}
		charged := uint64(0)
		if i < len(usage.Devices) {
			// Managed memory is on no process's account with the driver, wherever it lies, nor is
			// what processes exported that have ended.
			charged = usage.Devices[i].UsedBytes
			charged -= min(charged, usage.Devices[i].SpilledBytes)
			charged -= min(charged, usage.Devices[i].HeldBytes)
		}
		m.states[i].ResidueBytes = l.beyond.see(m.ID, d.UUID, of[m.ID], charged)
	}
}
