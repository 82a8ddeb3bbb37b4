package oci

import (
	"errors"
	"fmt"
	"io/fs"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// controlNodes are the driver's nodes that every container with a GPU uses. Those
// after the first are there only where their module is loaded.
var controlNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// NodeFiles resolves GPUs to their device nodes on the host. Where NVIDIA's runtime
// injects the GPUs it makes these nodes behind the runtime's back, so that the
// container's spec doesn't name them, and an update of the container (the kubelet's CPU
// manager makes one) takes their permission away again. With the nodes in the spec too
// it stays. NVIDIA's own device plugin knows this as PASS_DEVICE_SPECS.
type NodeFiles struct {
	// Paths are the nodes of one GPU, by its UUID, or an error that names it.
	Paths func(uuid string) ([]string, error)

	stat func(path string) (nodeInfo, error) // nil: the host's
}

var _ DeviceEdits = NodeFiles{}

// DeviceEdits implements the interface DeviceEdits.
func (n NodeFiles) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	stat := n.stat
	if stat == nil {
		stat = statNode
	}
	edits := &cdispec.ContainerEdits{}
	seen := map[string]bool{}
	add := func(path string) error {
		if seen[path] {
			return nil // two MIG devices of one GPU
		}
		seen[path] = true
		node := &cdispec.DeviceNode{Path: path, HostPath: path, Permissions: "rw"}
		if err := complete(node, stat); err != nil {
			return err
		}
		edits.DeviceNodes = append(edits.DeviceNodes, node)
		return nil
	}
	for i, path := range controlNodes {
		err := add(path)
		if i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	for _, uuid := range uuids {
		paths, err := n.Paths(uuid)
		if err != nil {
			return nil, fmt.Errorf("device nodes of %s: %w", uuid, err)
		}
		for _, path := range paths {
			if err := add(path); err != nil {
				return nil, fmt.Errorf("device nodes of %s: %w", uuid, err)
			}
		}
	}
	return edits, nil
}

// nodes are the device nodes that a container's spec names where NVIDIA's runtime
// injects its GPUs.
func (s Settings) nodes(uuids []string) (*cdispec.ContainerEdits, error) {
	if s.Nodes == nil {
		return &cdispec.ContainerEdits{}, nil
	}
	return s.Nodes.DeviceEdits(uuids)
}
