package nriplugin

import (
	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci"
)

// facts translates what NRI tells about a container.
func facts(pod *api.PodSandbox, ctr *api.Container) oci.Container {
	c := oci.Container{
		ID:             ctr.GetId(),
		Env:            ctr.GetEnv(),
		RuntimeHandler: pod.GetRuntimeHandler(),
		Annotations:    ctr.GetAnnotations(),
	}
	for _, m := range ctr.GetMounts() {
		c.Mounts = append(c.Mounts, m.ToOCI(nil))
	}
	for _, d := range ctr.GetLinux().GetDevices() {
		c.Devices = append(c.Devices, d.ToOCI())
	}
	for _, d := range ctr.GetCDIDevices() {
		c.CDIDevices = append(c.CDIDevices, d.GetName())
	}
	c.DeviceRules = deviceRules(ctr.GetLinux().GetResources())
	c.Majors = oci.HostDriverMajorsFor(c)
	c.RequestNames = oci.HostRequestNames()
	c.Privileged = oci.AllowsAllDevices(c.DeviceRules)
	return c
}

// deviceRules translates the rules of a device cgroup.
func deviceRules(resources *api.LinuxResources) []rspec.LinuxDeviceCgroup {
	var rules []rspec.LinuxDeviceCgroup
	for _, r := range resources.GetDevices() {
		rules = append(rules, rspec.LinuxDeviceCgroup{
			Allow: r.GetAllow(), Type: r.GetType(), Major: r.GetMajor().Get(), Minor: r.GetMinor().Get(), Access: r.GetAccess(),
		})
	}
	return rules
}

// podFacts translates what NRI tells about a pod.
func podFacts(pod *api.PodSandbox) grant.Pod {
	return grant.Pod{
		UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName(), Annotations: pod.GetAnnotations(),
	}
}
