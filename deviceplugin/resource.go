package deviceplugin

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// DefaultResource is the resource that NVIDIA's and HAMi's users ask for.
const DefaultResource = "nvidia.com/gpu"

// idSeparator stands between a card's UUID and the rest of a device's id.
const idSeparator = "::"

// Resource is an extended resource: how cards are cut into the devices that the
// kubelet counts.
type Resource struct {
	// Name is the resource's, "nvidia.com/gpu".
	Name string

	count int // of each card
}

// Replicas is a resource of which each card has as many as containers may share it.
func Replicas(name string, splitCount int) Resource {
	return Resource{Name: name, count: splitCount}
}

// device is one device of a resource: the n-th of a card.
type device struct {
	uuid string
	n    int
}

// id is the device's id, "<UUID>::<n>". It is the same after every restart.
func (d device) id() string { return d.uuid + idSeparator + strconv.Itoa(d.n) }

// compare orders devices by card, then by number.
func (d device) compare(other device) int {
	return cmp.Or(cmp.Compare(d.uuid, other.uuid), cmp.Compare(d.n, other.n))
}

// parse reads a device's id, of any card.
func (r Resource) parse(id string) (device, error) {
	uuid, number, _ := strings.Cut(id, idSeparator)
	n, err := strconv.Atoi(number)
	d := device{uuid, n}
	if err != nil || uuid == "" || d.id() != id {
		return device{}, fmt.Errorf("%q is no device of %s: want <UUID>::<n>", id, r.Name)
	}
	if n < 0 || n >= r.count {
		return device{}, fmt.Errorf("%q is no device of %s: a card has %d of them, numbered from 0", id, r.Name, r.count)
	}
	return d, nil
}

// parseAll reads the ids of devices, none of them twice.
func (r Resource) parseAll(ids []string) ([]device, error) {
	devices := make([]device, 0, len(ids))
	seen := make(map[device]bool, len(ids))
	for _, id := range ids {
		d, err := r.parse(id)
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
