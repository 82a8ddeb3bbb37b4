package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// All but the first exist only if their module is loaded.
var controlNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// NodeFiles resolves GPUs to their device nodes, as NVIDIA's device plugin with PASS_DEVICE_SPECS. An update
// of a container (by the kubelet's CPU manager) removes the permission for nodes that are not in its spec.
type NodeFiles struct {
	// Paths returns the nodes of one GPU.
	Paths func(uuid string) ([]string, error)

	stat func(path string) (nodeInfo, error) // nil: the host's
}

var _ DeviceEdits = NodeFiles{}

func (n NodeFiles) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	if n.stat == nil {
		n.stat = statNode
	}
	edits := &cdispec.ContainerEdits{}
	add := func(path string) error {
		if slices.ContainsFunc(edits.DeviceNodes, func(d *cdispec.DeviceNode) bool { return d.Path == path }) {
			return nil // two MIG devices of one GPU
		}
		node := &cdispec.DeviceNode{Path: path, HostPath: path, Permissions: "rw"}
		err := complete(node, n.stat)
		if err == nil {
			edits.DeviceNodes = append(edits.DeviceNodes, node)
		}
		return err
	}
	for i, path := range controlNodes {
		if err := add(path); err != nil && !(i > 0 && errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	for _, uuid := range uuids {
		paths, err := n.Paths(uuid)
		for _, path := range paths {
			err = errors.Join(err, add(path))
		}
		if err != nil {
			return nil, fmt.Errorf("device nodes of %s: %w", uuid, err)
		}
	}
	return edits, nil
}
