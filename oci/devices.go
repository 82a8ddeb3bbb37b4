package oci

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// DeviceEdits resolves GPUs to the edits that make them visible.
type DeviceEdits interface {
	// DeviceEdits returns merged edits, which the caller may change. Errors name the missing GPUs and what to do.
	DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error)
}

func injectDevices(uuids []string, s Settings, c Container, devices DeviceEdits) (Injection, *cdispec.ContainerEdits, error) {
	way := s.injection()
	if s.Host {
		return injectNone, &cdispec.ContainerEdits{}, nil
	}
	var cdiErr error
	if way != InjectEnvvar {
		var edits *cdispec.ContainerEdits
		if edits, cdiErr = resolve(uuids, devices); cdiErr == nil {
			return InjectCDI, edits, nil
		}
	}
	if way == InjectCDI {
		return "", nil, fmt.Errorf("device injection is %s: %w", way, cdiErr)
	}
	if err := requireNvidiaRuntime(s, c); err != nil {
		if way == InjectAuto {
			return "", nil, fmt.Errorf("device injection is %s, and neither way works: %w", way, errors.Join(cdiErr, err))
		}
		return "", nil, fmt.Errorf("device injection is %s: %w", way, err)
	}
	edits, err := s.requests(uuids)
	return InjectEnvvar, edits, err
}

// requests returns the mounts that request GPUs from NVIDIA's runtime, and the nodes of Settings.Nodes. NVIDIA's
// configuration selects these mounts or NVIDIA_VISIBLE_DEVICES
// (accept-nvidia-visible-devices-envvar-when-unprivileged).
func (s Settings) requests(uuids []string) (*cdispec.ContainerEdits, error) {
	edits := &cdispec.ContainerEdits{}
	if s.Nodes != nil {
		var err error
		if edits, err = s.Nodes.DeviceEdits(uuids); err != nil {
			return nil, err
		}
	}
	for _, uuid := range uuids {
		edits.Mounts = append(edits.Mounts, bindMount("/dev/null", path.Join(requestMounts[0], uuid), "ro", "noexec"))
	}
	return edits, nil
}

func resolve(uuids []string, devices DeviceEdits) (*cdispec.ContainerEdits, error) {
	if devices == nil {
		return nil, errors.New("no CDI registry is configured on this node: set the CDI spec directories")
	}
	edits, err := devices.DeviceEdits(uuids)
	if err != nil {
		return nil, err
	}
	if edits == nil || len(edits.DeviceNodes)+len(edits.Mounts)+len(edits.Env)+len(edits.Hooks) == 0 {
		return nil, fmt.Errorf("the CDI specs have no edits for %s: generate the CDI specs again", strings.Join(uuids, ", "))
	}
	return edits, nil
}

// requireNvidiaRuntime: a plain runtime ignores NVIDIA_VISIBLE_DEVICES.
func requireNvidiaRuntime(s Settings, c Container) error {
	if s.nvidiaRuntime(c.RuntimeHandler) {
		return nil
	}
	if s.NvidiaAdvice != "" {
		return errors.New(s.NvidiaAdvice)
	}
	return fmt.Errorf("the runtime handler %s does not run NVIDIA's container runtime, so nothing would inject the GPU: "+
		"set the pod's runtimeClassName to one that does (known here: %s), or generate a CDI spec",
		cmp.Or(c.RuntimeHandler, "(default)"), orNone(s.NvidiaHandlers))
}

func orNone(names []string) string { return cmp.Or(strings.Join(names, ", "), "none") }

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
