package deviceplugin

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

const idSeparator = "::"

type Resource struct {
	// Name is the resource name, "nvidia.com/gpu".
	Name string
	// Annotation is set by Allocate to the devices' ids, comma-separated. It differs by resource:
	// the kubelet drops the second of two different values.
	Annotation string
	// Parts: a device is a part of a GPU; a container uses many of as few GPUs as possible. Consecutive ids
	// are written as "<UUID>::<first>-<last>".
	Parts bool
}

// Replicas is a resource with several devices per GPU.
func Replicas(name string) Resource {
	return Resource{Name: name, Annotation: api.AnnotationReplicas}
}

// Whole is a resource of unshared devices (MIG devices of one profile), by the last part of its
// name.
func Whole(name, last string) Resource {
	return Resource{Name: name, Annotation: grant.MIGAnnotation(last)}
}

// Vcuda returns gpu-manager's two resources: per GPU 100 cores, and memory in blocks of 256 MiB.
// The kubelet chooses each without the other, so its choice does not select a GPU.
func Vcuda() (core, memory Resource) {
	core = Resource{Name: api.ResourceVcudaCore, Annotation: api.AnnotationVcudaCore, Parts: true}
	memory = Resource{Name: api.ResourceVcudaMemory, Annotation: api.AnnotationVcudaMemory, Parts: true}
	return core, memory
}

type device struct {
	uuid string
	n    int
}

// id is "<UUID>::<n>", the same after every restart.
func (d device) id() string { return d.uuid + idSeparator + strconv.Itoa(d.n) }

func (d device) compare(other device) int {
	return cmp.Or(cmp.Compare(d.uuid, other.uuid), cmp.Compare(d.n, other.n))
}

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

func (r Resource) parse(id string, gpus []GPU) (device, error) {
	uuid, number, _ := strings.Cut(id, idSeparator)
	n, err := strconv.Atoi(number)
	d := device{uuid, n}
	if err != nil || uuid == "" || d.id() != id {
		return device{}, fmt.Errorf("%q is not a device of %s: must be <UUID>::<n>", id, r.Name)
	}
	i, known := slices.BinarySearchFunc(gpus, uuid, func(c GPU, uuid string) int { return cmp.Compare(c.UUID, uuid) })
	if !known {
		return device{}, fmt.Errorf("%q: this node has no GPU %s", id, uuid)
	}
	if n < 0 || n >= gpus[i].Devices {
		return device{}, fmt.Errorf("%q is not a device of %s: the GPU has %d of them, numbered from 0", id, r.Name, gpus[i].Devices)
	}
	return d, nil
}

func (r Resource) parseAll(ids []string, gpus []GPU) ([]device, error) {
	devices := make([]device, 0, len(ids))
	seen := make(map[device]bool, len(ids))
	for _, id := range ids {
		d, err := r.parse(id, gpus)
		if err == nil && seen[d] {
			err = fmt.Errorf("duplicate device %q", id)
		}
		if err != nil {
			return nil, err
		}
		seen[d] = true
		devices = append(devices, d)
	}
	return devices, nil
}

// parseKnown skips ids of unknown GPUs: the kubelet may not have the newest list yet.
func (r Resource) parseKnown(ids []string, gpus []GPU) []device {
	devices := make([]device, 0, len(ids))
	for _, id := range ids {
		if d, err := r.parse(id, gpus); err == nil {
			devices = append(devices, d)
		}
	}
	return devices
}
