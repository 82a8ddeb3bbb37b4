package request

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/ledger"
)

// candidate is a GPU or a MIG device of the node.
type candidate struct {
	grant.GPU
	used     ledger.Usage
	index    string // NVML's; empty if unknown
	order    []int  // the numbers of the index
	allowed  bool   // by the operator
	cordoned bool
}

// inventory sorts by index; GPUs without one are last, by UUID.
func inventory(gpus map[string]grant.GPU, reserved map[string]ledger.Usage, c Config) []candidate {
	list := make([]candidate, 0, len(gpus))
	for uuid, gpu := range gpus {
		gpu.UUID = uuid
		index := c.Indices[uuid]
		list = append(list, candidate{GPU: gpu, used: reserved[uuid], index: index, order: numbers(index), allowed: c.allows(uuid), cordoned: ledger.IsCordoned(c.Cordoned, uuid, gpu.Parent)})
	}
	slices.SortFunc(list, inOrder)
	return list
}

// allows: an allowed GPU includes its MIG devices.
func (c Config) allows(uuid string) bool {
	if len(c.Devices) == 0 || slices.Contains(c.Devices, uuid) {
		return true
	}
	index := c.Indices[uuid]
	if index == "" {
		return false
	}
	gpu, _, _ := strings.Cut(index, ":")
	return slices.ContainsFunc(c.Devices, func(allowed string) bool {
		return allowed == index || allowed == gpu || c.Indices[allowed] == gpu
	})
}

func inOrder(a, b candidate) int {
	if n := slices.Compare(a.order, b.order); n != 0 {
		return n
	}
	return cmp.Compare(a.UUID, b.UUID)
}

// numbers returns 0 and 1 of "0:1". No index sorts last.
func numbers(index string) []int {
	var all []int
	for part := range strings.SplitSeq(index, ":") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return []int{1 << 30}
		}
		all = append(all, n)
	}
	return all
}

func (d candidate) String() string {
	if d.index == "" {
		return "GPU " + d.UUID
	}
	return fmt.Sprintf("GPU %s (%s)", d.index, d.UUID)
}

func (d candidate) mig() bool { return grant.IsMIG(d.UUID) }

// share is of a whole MIG device.
func (d candidate) share(a Amount) grant.Share {
	if d.mig() {
		return grant.Share{UUID: d.UUID, MemoryMiB: d.MemoryMiB, CorePercent: min(d.CorePercent, grant.MaxCorePercent)}
	}
	return grant.Share{UUID: d.UUID, MemoryMiB: a.Memory.Of(d.GPU), CorePercent: int(a.CorePercent)}
}

func (d candidate) fits(a Amount) bool {
	share := d.share(a)
	return a.Memory.Of(d.GPU) <= share.MemoryMiB && d.hasCapacity(share)
}

func (d candidate) hasCapacity(share grant.Share) bool {
	return share.MemoryMiB <= d.MemoryMiB-d.used.MemoryMiB &&
		(share.CorePercent == 0 || share.CorePercent <= d.CorePercent-d.used.CorePercent) &&
		d.used.Replicas < d.Replicas
}

// empty is the candidate without containers.
func (d candidate) empty() candidate {
	d.used = ledger.Usage{}
	return d
}

func emptied(list []candidate) []candidate {
	all := make([]candidate, len(list))
	for i, d := range list {
		all[i] = d.empty()
	}
	return all
}

// whole describes all of a GPU.
func (d candidate) whole() string {
	return fmt.Sprintf("%v has %d MiB and %d %%", d, d.MemoryMiB, d.CorePercent)
}

func (d candidate) free() string {
	return fmt.Sprintf("%v: %d of %d MiB, %d of %d %% and %d of %d replicas are free", d,
		max(0, d.MemoryMiB-d.used.MemoryMiB), d.MemoryMiB, max(0, d.CorePercent-d.used.CorePercent), d.CorePercent,
		max(0, d.Replicas-d.used.Replicas), d.Replicas)
}

// each joins a text for each GPU, of the first ones only.
func each(list []candidate, text func(candidate) string) string {
	const most = 8
	var texts []string
	for i, d := range list {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(list)-most))
			break
		}
		texts = append(texts, text(d))
	}
	return strings.Join(texts, "; ")
}

func find(list []candidate, name string, c Config) (candidate, error) {
	var found []candidate
	for _, d := range list {
		if d.UUID == name || d.index == name {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 0 && len(c.Indices) == 0 && isIndex(name):
		return candidate{}, grant.Errorf(grant.ErrUnknownGPU, "GPU %s: the indices of this node's GPUs are unknown: use its UUID", name)
	case len(found) == 0:
		return candidate{}, grant.Errorf(grant.ErrUnknownGPU, "GPU %s: this node has no such GPU: it has %s", quote.Short(name), namesOf(list))
	case len(found) > 1:
		return candidate{}, grant.Errorf(grant.ErrAmbiguous, "GPU %s: several GPUs of this node have this index: use its UUID", quote.Short(name))
	case !found[0].allowed:
		return candidate{}, grant.Errorf(ErrForbidden, "%v: containers without Kubernetes are not allowed to use it (devices in %s)", found[0], c.Path)
	case found[0].cordoned:
		return candidate{}, grant.Errorf(grant.ErrUnknownGPU, "%v is cordoned: it gets no new container (gpuslice uncordon %s ends this)", found[0], cmp.Or(found[0].index, found[0].UUID))
	}
	return found[0], nil
}

func namesOf(list []candidate) string {
	names := make([]string, len(list))
	for i, d := range list {
		names[i] = d.String()
	}
	return cmp.Or(shortList(names), "none")
}
