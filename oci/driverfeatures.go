package oci

import (
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// DriverFeatures adds to the edits of GPUs those of what else every container with a GPU
// gets: GPUDirect Storage, Mellanox OFED, GDRCopy (nvidia.com/gds=all and the like).
// NVIDIA's runtime adds them by variables; where CDI makes the GPUs visible that one is
// kept out, and their own CDI specs have to be read.
type DriverFeatures struct {
	GPUs DeviceEdits
	// Features are the registries of their kinds.
	Features []*Registry
}

var _ DeviceEdits = DriverFeatures{}

// allOfKind is the CDI device that stands for all of a kind.
const allOfKind = "all"

// DeviceEdits implements the interface DeviceEdits.
func (f DriverFeatures) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	edits, err := f.GPUs.DeviceEdits(uuids)
	if err != nil {
		return nil, err
	}
	for _, feature := range f.Features {
		more, err := feature.DeviceEdits([]string{allOfKind})
		if err != nil {
			return nil, fmt.Errorf("%s is wanted for every container with a GPU: %w", feature.kind, err)
		}
		edits = Merge(edits, more)
	}
	return edits, nil
}
