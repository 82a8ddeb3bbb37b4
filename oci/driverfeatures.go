package oci

import (
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// DriverFeatures adds edits for GPUDirect Storage, Mellanox OFED and GDRCopy (nvidia.com/gds=all and similar).
// NVIDIA's runtime adds them by variables, but not with CDI.
type DriverFeatures struct {
	GPUs     DeviceEdits
	Features []*Registry
}

var _ DeviceEdits = DriverFeatures{}

const allOfKind = "all"

func (f DriverFeatures) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	edits, err := f.GPUs.DeviceEdits(uuids)
	if err != nil {
		return nil, err
	}
	for _, feature := range f.Features {
		more, err := feature.DeviceEdits([]string{allOfKind})
		if err != nil {
			return nil, fmt.Errorf("%s is configured for every container with a GPU: %w", feature.kind, err)
		}
		edits = Merge(edits, more)
	}
	return edits, nil
}
