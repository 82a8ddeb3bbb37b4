package metrics

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Legacy is a program with metric names and units that are exported too, so that its dashboards
// keep working.
type Legacy string

const (
	HAMi       Legacy = "hami"        // vGPUmonitor: the names of version 2.7, and the former ones
	GPUManager Legacy = "gpu-manager" // tke's gpu-manager
)

var Legacies = []Legacy{HAMi, GPUManager}

func familiesWith(legacy []Legacy) []family {
	all := slices.Clone(families)
	if slices.Contains(legacy, HAMi) {
		all = append(all, hamiFamilies...)
	}
	if slices.Contains(legacy, GPUManager) {
		all = append(all, gpuManagerFamilies...)
	}
	return all
}

// pods returns the containers of pods that have not ended. Of two attempts of one container,
// which have the same labels, it returns the newer.
func (r *reading) pods() []*view.Container {
	position := map[[2]string]int{}
	var all []*view.Container
	for i := range r.node.Containers {
		c := &r.node.Containers[i]
		if c.Pod == "" || c.State == string(ledger.StateReleased) {
			continue
		}
		key := [2]string{c.Pod, c.Name}
		if old, known := position[key]; !known {
			position[key] = len(all)
			all = append(all, c)
		} else if !all[old].CreatedAt.After(c.CreatedAt) {
			all[old] = c
		}
	}
	return all
}

func (r *reading) podShares() (all []row) {
	for _, c := range r.pods() {
		for j := range c.Shares {
			one := gpuRow(r.gpu(c.Shares[j].UUID))
			one.container, one.share, one.index = c, &c.Shares[j], j
			all = append(all, one)
		}
	}
	return all
}

func (r *reading) migShares() []row {
	return slices.DeleteFunc(r.podShares(), func(s row) bool { return s.gpu.MIG == nil })
}

func (r *reading) wholeGPUs() []row {
	return slices.DeleteFunc(r.gpus(), func(c row) bool { return c.gpu.MIGProfile != "" })
}

// gpu returns the GPU of a UUID; one that is gone has index -1.
func (r *reading) gpu(uuid string) *view.GPU {
	for i := range r.node.GPUs {
		if r.node.GPUs[i].UUID == uuid {
			return &r.node.GPUs[i]
		}
	}
	return &view.GPU{UUID: uuid, Index: -1}
}

func alias(name, help, of string, factor float64) family {
	original := families[slices.IndexFunc(families, func(f family) bool { return f.Name == of })]
	return gauge(name, help+" Alias of "+of+".", func(r *row) (float64, bool) {
		value, known := original.value(r)
		return value * factor, known
	})
}

func under(name string, labels []label, old string) label {
	i := slices.IndexFunc(labels, func(l label) bool { return l.name == old })
	return label{name, labels[i].value}
}

func constant(name, value string) label {
	return label{name, func(*reading, *row) string { return value }}
}

func text(name string, value func(*row) string) label {
	return label{name, func(_ *reading, r *row) string { return value(r) }}
}

func indexLabel(name string) label {
	return text(name, func(r *row) string { return strconv.Itoa(r.index) })
}

func bytesLabel(name string, value func(*row) uint64) label {
	return text(name, func(r *row) string { return strconv.FormatUint(value(r), 10) })
}

// buffers is what a share uses beside its contexts. A container can write more contexts than use.
func buffers(r *row) uint64 {
	return r.share.UsedBytes - min(r.share.UsedBytes, r.share.ContextBytes)
}

func contexts(r *row) uint64 { return r.share.ContextBytes }
func residue(r *row) uint64  { return r.share.ResidueBytes }

// perGPU sums what a container uses by GPU, and in total. MIG devices of one GPU are one.
func (r *reading) perGPU() (all []row) {
	for _, c := range r.pods() {
		first := len(all)
		for j := range c.Shares {
			s := &c.Shares[j]
			word := "gpu" + s.UUID // a GPU that is gone
			if gpu := r.gpu(s.UUID); gpu.Index >= 0 {
				word = "gpu" + strconv.Itoa(gpu.Index)
			}
			i := slices.IndexFunc(all[first:], func(known row) bool { return known.word == word })
			if i < 0 {
				i = len(all) - first
				all = append(all, row{container: c, word: word, share: &view.Share{}})
			}
			addUse(all[first+i].share, s)
		}
		total := row{container: c, word: "total", share: &view.Share{}}
		for _, gpu := range all[first:] {
			addUse(total.share, gpu.share)
		}
		all = append(all, total)
	}
	return all
}

// addUse adds a share's use to a sum, which saturates: containers can write any number.
func addUse(sum, s *view.Share) {
	if sum.UsedBytes += s.UsedBytes; sum.UsedBytes < s.UsedBytes {
		sum.UsedBytes = math.MaxUint64
	}
	if s.CoreUsedPercent != nil {
		percents := *s.CoreUsedPercent
		if sum.CoreUsedPercent != nil {
			percents += *sum.CoreUsedPercent
		}
		sum.CoreUsedPercent = &percents
	}
}

func (r *reading) granted() (all []row) {
	for _, c := range r.pods() {
		total := row{container: c, word: "total", share: &view.Share{}}
		for j := range c.Shares {
			total.share.MemoryMiB += c.Shares[j].MemoryMiB
			total.number += cmp.Or(float64(c.Shares[j].CorePercent), percent) / percent
		}
		all = append(all, total)
	}
	return all
}
