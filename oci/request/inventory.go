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

// candidate is a GPU of the node, or a MIG device, and what is booked of it.
type candidate struct {
	grant.GPU
	used  ledger.Usage
	index string // NVML's; empty: not known
	order []int  // the numbers of the index
	// allowed says that the operator lets such containers use it.
	allowed bool
}

// inventory are the node's GPUs in the order of their indices, those without one last,
// by their UUIDs.
func inventory(gpus map[string]grant.GPU, booked map[string]ledger.Usage, c Config) []candidate {
	list := make([]candidate, 0, len(gpus))
	for uuid, gpu := range gpus {
		gpu.UUID = uuid
		index := c.Indices[uuid]
		list = append(list, candidate{GPU: gpu, used: booked[uuid], index: index, order: numbers(index), allowed: c.allows(uuid)})
	}
	slices.SortFunc(list, inOrder)
	return list
}

// allows says whether the operator lets such containers use a GPU. With a GPU he lets
// them use the MIG devices that it is cut into.
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

// inOrder sorts GPUs by index and UUID.
func inOrder(a, b candidate) int {
	if n := slices.Compare(a.order, b.order); n != 0 {
		return n
	}
	return cmp.Compare(a.UUID, b.UUID)
}

// numbers are an index's: "0:1" is 0 and 1. No index is more than any.
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

// String names the GPU for people.
func (d candidate) String() string {
	if d.index == "" {
		return "GPU " + d.UUID
	}
	return fmt.Sprintf("GPU %s (%s)", d.index, d.UUID)
}

// mig says whether it is a MIG device.
func (d candidate) mig() bool { return grant.IsMIG(d.UUID) }

// share is what an amount is on the GPU. A MIG device is booked whole.
func (d candidate) share(a Amount) grant.Share {
	if d.mig() {
		return grant.Share{UUID: d.UUID, MemoryMiB: d.MemoryMiB, CorePercent: min(d.CorePercent, grant.MaxCorePercent)}
	}
	return grant.Share{UUID: d.UUID, MemoryMiB: a.Memory.Of(d.GPU), CorePercent: a.CorePercent}
}

// fits says whether a share that satisfies the amount has room on the GPU, by the
// ledger's rules.
func (d candidate) fits(a Amount) bool {
	share := d.share(a)
	return a.Memory.Of(d.GPU) <= share.MemoryMiB && d.hasRoom(share)
}

// hasRoom says whether a share can be booked on the GPU.
func (d candidate) hasRoom(share grant.Share) bool {
	return share.MemoryMiB <= d.MemoryMiB-d.used.MemoryMiB &&
		(share.CorePercent == 0 || share.CorePercent <= d.CorePercent-d.used.CorePercent) &&
		d.used.Slots < d.Slots
}

// free tells people what is left of the GPU.
func (d candidate) free() string {
	return fmt.Sprintf("%v: %d of %d MiB, %d of %d %% and %d of %d slots are free", d,
		max(0, d.MemoryMiB-d.used.MemoryMiB), d.MemoryMiB, max(0, d.CorePercent-d.used.CorePercent), d.CorePercent,
		max(0, d.Slots-d.used.Slots), d.Slots)
}

// freeOf tells what is left of several GPUs.
func freeOf(list []candidate) string {
	const most = 8
	var texts []string
	for i, d := range list {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(list)-most))
			break
		}
		texts = append(texts, d.free())
	}
	return strings.Join(texts, "; ")
}

// find returns the GPU of a name, a UUID or an index.
func find(list []candidate, name string, c Config) (candidate, error) {
	var found []candidate
	for _, d := range list {
		if d.UUID == name || d.index == name {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 0 && len(c.Indices) == 0 && isIndex(name):
		return candidate{}, refuse(grant.ErrUnknownGPU, "GPU %s: the indices of this node's GPUs are not known now: name it by its UUID", name)
	case len(found) == 0:
		return candidate{}, refuse(grant.ErrUnknownGPU, "GPU %s: this node has no such GPU to share: there are %s", quote.Short(name), namesOf(list))
	case len(found) > 1:
		return candidate{}, refuse(grant.ErrAmbiguous, "GPU %s: this node has several of this index: name it by its UUID", quote.Short(name))
	case !found[0].allowed:
		return candidate{}, refuse(ErrForbidden, "%v: containers without Kubernetes may not use it (devices in %s)", found[0], c.Path)
	}
	return found[0], nil
}

// namesOf lists GPUs for a message.
func namesOf(list []candidate) string {
	if len(list) == 0 {
		return "none"
	}
	names := make([]string, len(list))
	for i, d := range list {
		names[i] = d.String()
	}
	return shortList(names)
}
