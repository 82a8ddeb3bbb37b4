package metrics

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Legacy is another program by whose metrics' names and units the same is told again, so
// that its dashboards go on.
type Legacy string

const (
	// HAMi is HAMi's vGPUmonitor: the names of its version 2.7, and those before.
	HAMi Legacy = "hami"
	// GPUManager is tke's gpu-manager.
	GPUManager Legacy = "gpu-manager"
)

// Legacies are all that are known.
var Legacies = []Legacy{HAMi, GPUManager}

// groupsWith are the node's groups, with aliases.
func groupsWith(aliases []Legacy) []group {
	all := slices.Clone(groups)
	if slices.Contains(aliases, HAMi) {
		all = append(all, hamiGroups...)
	}
	if slices.Contains(aliases, GPUManager) {
		all = append(all, gpuManagerGroups...)
	}
	return all
}

// pods are the containers that the others would tell of: of pods, that have not ended, and
// of two attempts of one container, which their labels don't tell apart, the newer.
func (r *reading) pods() []*view.Container {
	newest := map[[2]string]*view.Container{}
	var all []*view.Container
	for i := range r.node.Containers {
		c := &r.node.Containers[i]
		if c.Pod == "" || c.State == string(ledger.StateReleased) {
			continue
		}
		key := [2]string{c.Pod, c.Name}
		if old := newest[key]; old == nil {
			all = append(all, c)
		} else if old.CreatedAt.After(c.CreatedAt) {
			continue
		}
		newest[key] = c
	}
	for i, c := range all {
		all[i] = newest[[2]string{c.Pod, c.Name}]
	}
	return all
}

func (r *reading) podShares() []row {
	var all []row
	for _, c := range r.pods() {
		for j := range c.Shares {
			all = append(all, row{container: c, share: &c.Shares[j], place: j, gpu: r.gpu(c.Shares[j].UUID)})
		}
	}
	return all
}

// migShares are those that are MIG devices.
func (r *reading) migShares() []row {
	return slices.DeleteFunc(r.podShares(), func(s row) bool { return s.gpu.MIG == nil })
}

// wholeGPUs are the GPUs, without their MIG devices.
func (r *reading) wholeGPUs() []row {
	return slices.DeleteFunc(r.gpus(), func(c row) bool { return c.gpu.MIGProfile != "" })
}

// GPU is that of a UUID, or one of which nothing is known.
func (r *reading) gpu(uuid string) *view.GPU {
	for i := range r.node.GPUs {
		if r.node.GPUs[i].UUID == uuid {
			return &r.node.GPUs[i]
		}
	}
	return &view.GPU{UUID: uuid, Index: -1}
}

// alias has another name and unit; what it is of and whether it is known is the same.
func alias(name, help string, of family, factor float64) family {
	return family{Family{Name: name, Help: help + " Alias of " + of.Name + "."}, func(r *row) (float64, bool) {
		value, known := of.value(r)
		return value * factor, known
	}}
}

// ours is one of our families by its name.
func ours(name string) family {
	for _, g := range groups {
		for _, f := range g.families {
			if f.Name == name {
				return f
			}
		}
	}
	panic("no metric is called " + name) // at the program's start, or never
}

// under is a label under another name.
func under(name string, labels []label, old string) label {
	i := slices.IndexFunc(labels, func(l label) bool { return l.name == old })
	return label{name, labels[i].value}
}

// sorted has labels in the order of their names.
func sorted(labels ...label) []label {
	slices.SortFunc(labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return labels
}

// constant is a label that says the same of everything.
func constant(name, value string) label {
	return label{name, func(*reading, *row) string { return value }}
}

func place(name string) label {
	return label{name, func(_ *reading, r *row) string { return strconv.Itoa(r.place) }}
}

const percent = 100 // of 1

// bytesOf is a label with a number of bytes.
func bytesOf(name string, value func(*view.Share) uint64) label {
	return label{name, func(_ *reading, r *row) string { return strconv.FormatUint(value(r.share), 10) }}
}

// buffers are what a share uses beside its contexts.
func buffers(s *view.Share) uint64 { return s.UsedBytes - min(s.UsedBytes, s.ContextBytes) }

func contexts(s *view.Share) uint64 { return s.ContextBytes }
func residue(s *view.Share) uint64  { return s.ResidueBytes }

// perGPU sums what a container has by GPU, in gpu-manager's words, and in all. MIG devices of one GPU are one there.
func (r *reading) perGPU() []row {
	var all []row
	for _, c := range r.pods() {
		first := len(all)
		for j := range c.Shares {
			s := &c.Shares[j]
			word := "gpu" + s.UUID // of a GPU that is not there any more
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

// addUse adds what a share uses to a sum, which doesn't overflow: tenants say what it is of.
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

// requested is what each container is granted, of all its GPUs.
func (r *reading) requested() []row {
	var all []row
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

func sinceNow(t time.Time) float64 { return time.Since(t).Seconds() }
