package nriplugin

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/oci"
)

// adjustment translates edits to an NRI adjustment. It removes each item before it adds it, so that it does
// not conflict with earlier plugins.
func adjustment(edits *cdispec.ContainerEdits, replaced oci.Replaced) (*api.ContainerAdjustment, error) {
	if err := checkSupported(edits); err != nil {
		return nil, err
	}
	adjust := &api.ContainerAdjustment{}
	for _, e := range edits.Env {
		name, value, _ := strings.Cut(e, "=")
		adjust.RemoveEnv(name)
		adjust.AddEnv(name, value)
	}
	for _, destination := range replaced.Mounts {
		adjust.RemoveMount(destination)
	}
	for _, m := range edits.Mounts {
		adjust.RemoveMount(m.ContainerPath)
		adjust.AddMount(&api.Mount{
			Source: m.HostPath, Destination: m.ContainerPath, Type: cmp.Or(m.Type, "bind"), Options: m.Options,
		})
	}
	for _, d := range edits.DeviceNodes {
		adjust.RemoveDevice(d.Path)
		adjust.AddDevice(&api.LinuxDevice{
			Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor,
			FileMode: api.FileMode(d.FileMode), Uid: api.UInt32(d.UID), Gid: api.UInt32(d.GID),
		})
	}
	adjust.AddHooks(hooks(edits.Hooks))
	return adjust, nil
}

// checkSupported refuses edits that NRI can't express. Only additional groups are ignored: NVIDIA's
// device nodes need none.
func checkSupported(edits *cdispec.ContainerEdits) error {
	var errs []error
	if len(edits.NetDevices) > 0 {
		errs = append(errs, errors.New("the CDI spec adds network devices, which gpuslice does not pass on by NRI: take them out of the nvidia.com/gpu spec"))
	}
	if edits.IntelRdt != nil {
		errs = append(errs, errors.New("the CDI spec sets Intel RDT, which gpuslice does not pass on by NRI: take it out of the nvidia.com/gpu spec"))
	}
	for _, d := range edits.DeviceNodes {
		if d.Type == "" {
			errs = append(errs, fmt.Errorf("the CDI spec's device node %s has no type and is not on the host: is the driver loaded?", d.Path))
		}
		// NRI makes every device readable and writable (LinuxDevice.AccessString of nri v0.12). For a
		// capability that is the same as readable: it is only opened.
		permissions := strings.Trim(d.Permissions, "m")
		if permissions == "r" && strings.HasPrefix(path.Clean(d.Path), "/dev/nvidia-caps/") {
			continue
		}
		if d.Permissions != "" && permissions != "rw" {
			errs = append(errs, fmt.Errorf("the CDI spec gives the device node %s the permissions %q, and NRI supports rw only", d.Path, d.Permissions))
		}
	}
	return errors.Join(errs...)
}

func hooks(list []*cdispec.Hook) *api.Hooks {
	hooks := &rspec.Hooks{}
	lists := oci.HookLists(hooks)
	for _, h := range list {
		if of := lists[h.HookName]; of != nil {
			*of = append(*of, rspec.Hook{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: h.Timeout})
		}
	}
	return api.FromOCIHooks(hooks)
}
