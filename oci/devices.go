package oci

import (
	"errors"
	"fmt"
	"path"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// DeviceEdits resolves GPUs to the edits that make them visible. [Registry] is
// the node's; tests have their own.
type DeviceEdits interface {
	// DeviceEdits returns the merged edits of all the GPUs, which the caller may
	// change, or an error that names the GPUs that are missing and what to do.
	DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error)
}

// injectDevices chooses how the GPUs become visible. The edits are empty where
// NVIDIA's runtime does it.
func injectDevices(uuids []string, s Settings, c Container, devices DeviceEdits) (Injection, *cdispec.ContainerEdits, error) {
	switch way := s.injection(); way {
	case InjectCDI:
		edits, err := resolve(uuids, devices)
		if err != nil {
			return "", nil, fmt.Errorf("device injection is %s: %w", way, err)
		}
		return InjectCDI, edits, nil

	case InjectEnvvar:
		if err := wantNvidiaRuntime(s, c); err != nil {
			return "", nil, fmt.Errorf("device injection is %s: %w", way, err)
		}
		edits, err := s.requests(uuids)
		return InjectEnvvar, edits, err

	case InjectAuto:
		edits, cdiErr := resolve(uuids, devices)
		if cdiErr == nil {
			return InjectCDI, edits, nil
		}
		if err := wantNvidiaRuntime(s, c); err != nil {
			return "", nil, fmt.Errorf("device injection is %s, and neither way works: %w", way, errors.Join(cdiErr, err))
		}
		edits, err := s.requests(uuids)
		return InjectEnvvar, edits, err

	default:
		return "", nil, fmt.Errorf("device injection %q is not known: use auto, cdi or envvar", way)
	}
}

// requests returns the volume mounts that request GPUs from NVIDIA's runtime, and the GPUs'
// device nodes if the operator wants that. NVIDIA_VISIBLE_DEVICES requests the same: NVIDIA's
// configuration decides which of the two its runtime reads. With
// accept-nvidia-visible-devices-envvar-when-unprivileged = false it ignores the variable of an
// unprivileged container.
func (s Settings) requests(uuids []string) (*cdispec.ContainerEdits, error) {
	edits, err := s.nodes(uuids)
	if err != nil {
		return nil, err
	}
	for _, uuid := range uuids {
		edits.Mounts = append(edits.Mounts, bindMount("/dev/null", path.Join(requestMounts[0], uuid), "ro", "noexec"))
	}
	return edits, nil
}

// resolve asks the registry, where the node has one.
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

// wantNvidiaRuntime refuses a container that nobody would give its GPUs to:
// with a plain runtime NVIDIA_VISIBLE_DEVICES does nothing.
func wantNvidiaRuntime(s Settings, c Container) error {
	if s.nvidiaRuntime(c.RuntimeHandler) {
		return nil
	}
	if s.NvidiaAdvice != "" {
		return errors.New(s.NvidiaAdvice)
	}
	handler := c.RuntimeHandler
	if handler == "" {
		handler = "(default)"
	}
	return fmt.Errorf("the runtime handler %s does not run NVIDIA's container runtime, so nothing would inject the GPU: "+
		"set the pod's runtimeClassName to one that does (known here: %s), or generate a CDI spec",
		handler, orNone(s.NvidiaHandlers))
}

// orNone lists names for a person.
func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
