package deviceplugin

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
)

// The resources that users of NVIDIA's and HAMi's device plugins ask for, and those of
// gpu-manager's.
const (
	DefaultResource     = "nvidia.com/gpu"
	VcudaCoreResource   = "tencent.com/vcuda-core"
	VcudaMemoryResource = "tencent.com/vcuda-memory"
)

// VcudaMemoryMiB is what one of gpu-manager's memory devices stands for.
const VcudaMemoryMiB = 256

// VcudaCores is how many of gpu-manager's core devices a GPU has.
const VcudaCores = 100

// idSeparator stands between a GPU's UUID and the rest of a device's id.
const idSeparator = "::"

// Resource is an extended resource of which each GPU has some devices that the kubelet
// counts.
type Resource struct {
	// Name is the resource's, "nvidia.com/gpu".
	Name string
	// Annotation is the container's that Allocate passes the devices' ids along in,
	// separated by commas. Two resources have two: the kubelet drops the second of two
	// values that differ.
	Annotation string
	// Parts says that a device is a part of a GPU, of which a container wants many: of
	// as few GPUs as will do. Ids that follow each other are passed along as one,
	// "<UUID>::<first>-<last>". Otherwise a device stands for the GPU, and who wants two
	// wants two GPUs.
	Parts bool
}

// Replicas is a resource of which each GPU has as many devices as containers may share
// it.
func Replicas(name string) Resource {
	return Resource{Name: name, Annotation: grant.AnnotationReplicas}
}

// Whole is a resource of devices that are one container's alone (MIG devices of one
// profile), by the last part of its name.
func Whole(name, last string) Resource {
	return Resource{Name: name, Annotation: grant.MIGAnnotation(last)}
}

// Vcuda are gpu-manager's two resources: of each GPU 100 cores, and its memory in
// blocks of 256 MiB. The kubelet chooses the devices of one without looking at those of
// the other, so that its choice says nothing of the GPU.
func Vcuda() (core, memory Resource) {
	core = Resource{Name: VcudaCoreResource, Annotation: "gpuslice.io/vcuda-core", Parts: true}
	memory = Resource{Name: VcudaMemoryResource, Annotation: "gpuslice.io/vcuda-memory", Parts: true}
	return core, memory
}

// device is one device of a resource: the n-th of a GPU.
type device struct {
	uuid string
	n    int
}

// id is the device's id, "<UUID>::<n>". It is the same after every restart.
func (d device) id() string { return d.uuid + idSeparator + strconv.Itoa(d.n) }

// compare orders devices by GPU, then by number.
func (d device) compare(other device) int {
	return cmp.Or(cmp.Compare(d.uuid, other.uuid), cmp.Compare(d.n, other.n))
}

// list writes devices as the annotation has them.
func (r Resource) list(devices []device) string {
	if !r.Parts {
		return strings.Join(sortedIDs(devices), ",")
	}
	var text strings.Builder
	sorted := slices.SortedFunc(slices.Values(devices), device.compare)
	for i := 0; i < len(sorted); {
		last := i
		for last+1 < len(sorted) && sorted[last+1] == (device{sorted[i].uuid, sorted[last].n + 1}) {
			last++
		}
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(sorted[i].id())
		if last > i {
			fmt.Fprintf(&text, "-%d", sorted[last].n)
		}
		i = last + 1
	}
	return text.String()
}

// parse reads a device's id. It must be of one of the GPUs.
func (r Resource) parse(id string, gpus []GPU) (device, error) {
	uuid, number, _ := strings.Cut(id, idSeparator)
	n, err := strconv.Atoi(number)
	d := device{uuid, n}
	if err != nil || uuid == "" || d.id() != id {
		return device{}, fmt.Errorf("%q is no device of %s: want <UUID>::<n>", id, r.Name)
	}
	i, known := slices.BinarySearchFunc(gpus, uuid, func(c GPU, uuid string) int { return cmp.Compare(c.UUID, uuid) })
	if !known {
		return device{}, fmt.Errorf("%q: this node has no GPU %s", id, uuid)
	}
	if n < 0 || n >= gpus[i].Devices {
		return device{}, fmt.Errorf("%q is no device of %s: the GPU has %d of them, numbered from 0", id, r.Name, gpus[i].Devices)
	}
	return d, nil
}

// parseAll reads the ids of devices, none of them twice.
func (r Resource) parseAll(ids []string, gpus []GPU) ([]device, error) {
	devices := make([]device, 0, len(ids))
	seen := make(map[device]bool, len(ids))
	for _, id := range ids {
		d, err := r.parse(id, gpus)
		if err != nil {
			return nil, err
		}
		if seen[d] {
			return nil, fmt.Errorf("%q is named twice", id)
		}
		seen[d] = true
		devices = append(devices, d)
	}
	return devices, nil
}

// parseKnown reads the ids that are of the GPUs. The kubelet may not have heard yet that
// others are gone.
func (r Resource) parseKnown(ids []string, gpus []GPU) []device {
	devices := make([]device, 0, len(ids))
	for _, id := range ids {
		if d, err := r.parse(id, gpus); err == nil {
			devices = append(devices, d)
		}
	}
	return devices
}
