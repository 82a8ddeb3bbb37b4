package ociruntime

import (
	"encoding/json"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// view is the part of a config that is looked at here or that edits change. The rest is
// left as it was found: unread, so that no time goes into the many types of the whole.
//
// An edit of what isn't in here would be lost: TestEditsReachTheConfig.
type view struct {
	Process     *processView      `json:"process,omitempty"`
	Root        *rspec.Root       `json:"root,omitempty"`
	Hostname    string            `json:"hostname,omitempty"`
	Mounts      []rspec.Mount     `json:"mounts,omitempty"`
	Hooks       *rspec.Hooks      `json:"hooks,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Linux       *linuxView        `json:"linux,omitempty"`
}

type processView struct {
	User         rspec.User        `json:"user"`
	Env          []string          `json:"env,omitempty"`
	Capabilities *capabilitiesView `json:"capabilities,omitempty"`
}

type capabilitiesView struct {
	Bounding []string `json:"bounding,omitempty"`
}

type linuxView struct {
	Resources   *resourcesView                  `json:"resources,omitempty"`
	CgroupsPath string                          `json:"cgroupsPath,omitempty"`
	Namespaces  []rspec.LinuxNamespace          `json:"namespaces,omitempty"`
	Devices     []rspec.LinuxDevice             `json:"devices,omitempty"`
	NetDevices  map[string]rspec.LinuxNetDevice `json:"netDevices,omitempty"`
	IntelRdt    *rspec.LinuxIntelRdt            `json:"intelRdt,omitempty"`
}

type resourcesView struct {
	Devices []rspec.LinuxDeviceCgroup `json:"devices,omitempty"`
}

// decodeSpec reads the part of a config.
func decodeSpec(data []byte) (*rspec.Spec, error) {
	if spec, read := readView(data); read {
		return spec, nil
	}
	var v view
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	return v.spec(), nil
}

func (v view) spec() *rspec.Spec {
	spec := &rspec.Spec{Root: v.Root, Hostname: v.Hostname, Mounts: v.Mounts, Hooks: v.Hooks, Annotations: v.Annotations}
	if p := v.Process; p != nil {
		spec.Process = &rspec.Process{User: p.User, Env: p.Env}
		if p.Capabilities != nil {
			spec.Process.Capabilities = &rspec.LinuxCapabilities{Bounding: p.Capabilities.Bounding}
		}
	}
	if l := v.Linux; l != nil {
		spec.Linux = &rspec.Linux{
			CgroupsPath: l.CgroupsPath, Namespaces: l.Namespaces, Devices: l.Devices,
			NetDevices: l.NetDevices, IntelRdt: l.IntelRdt,
		}
		if l.Resources != nil {
			spec.Linux.Resources = &rspec.LinuxResources{Devices: l.Resources.Devices}
		}
	}
	return spec
}
