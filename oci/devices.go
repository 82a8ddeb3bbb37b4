package oci

import (
	"cmp"
	"errors"
	"fmt"
	"path"
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
