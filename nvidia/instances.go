package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// instanceSymbols are required for GPU instances. go-nvml ends the process when it calls a missing function.
var instanceSymbols = append([]string{
	"nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById",
	"nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstances", "nvmlGpuInstanceGetComputeInstanceById",
	"nvmlComputeInstanceGetInfo_v2", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance",
	"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy",
}, migSymbols...)

// partition calls f with the handle of a GPU in MIG mode. It never changes the mode.
func (c *Cache) partition(ctx context.Context, gpu string, f func(r reader, dev nvml.Device, what string) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if !c.open {
		return errors.New("NVML is not open")
	}
	for _, symbol := range instanceSymbols {
		if !c.reader.has(symbol) {
			return fmt.Errorf("the driver has no %s: update the driver", symbol)
		}
	}
	what := "GPU " + gpu
	dev, ret := c.reader.lib.DeviceGetHandleByUUID(gpu)
	if err := check(what, "nvmlDeviceGetHandleByUUID", ret); err != nil {
		return err
	}
	current, _, ret := dev.GetMigMode()
	if err := check(what, "nvmlDeviceGetMigMode", ret); err != nil {
		return err
	}
	if current != nvml.DEVICE_MIG_ENABLE {
		return fmt.Errorf("%s: is not in MIG mode", what)
	}
	return f(c.reader, dev, what)
}

// Instances reads the GPU instances of a GPU in MIG mode now.
func (c *Cache) Instances(ctx context.Context, gpu string) (all []hardware.GPUInstance, err error) {
	err = c.partition(ctx, gpu, func(r reader, dev nvml.Device, what string) error {
		var profiles []nvml.GpuInstanceProfileInfo
		if profiles, err = instanceProfiles(dev, what); err == nil {
			all, err = r.instances(dev, profiles, what)
		}
		return err
	})
	return all, err
}

// CreateInstance makes a GPU instance without compute instances. With made and an error it is made, and its ID is unknown.
func (c *Cache) CreateInstance(ctx context.Context, gpu string, profile, start, size int) (id int, made bool, err error) {
	err = c.partition(ctx, gpu, func(_ reader, dev nvml.Device, what string) error {
		instance, ret := dev.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: uint32(profile)}, &nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(size)})
		if err := check(what, "nvmlDeviceCreateGpuInstanceWithPlacement", ret); err != nil {
			return err
		}
		made = true
		info, ret := instance.GetInfo()
		id = int(info.Id)
		return check(what, "nvmlGpuInstanceGetInfo", ret)
	})
	return id, made, err
}

// CreateCompute makes the compute instance that has all of a GPU instance.
func (c *Cache) CreateCompute(ctx context.Context, gpu string, instance int) error {
	return c.partition(ctx, gpu, func(_ reader, dev nvml.Device, what string) error {
		gi, ret := dev.GetGpuInstanceById(instance)
		if err := check(what, "nvmlDeviceGetGpuInstanceById", ret); err != nil {
			return err
		}
		profiles, err := computeProfiles(gi, what)
		if err != nil {
			return err
		}
		var largest nvml.ComputeInstanceProfileInfo
		for _, p := range profiles {
			if p.InstanceCount == 1 && p.SliceCount > largest.SliceCount {
				largest = p
			}
		}
		if largest.SliceCount == 0 {
			return fmt.Errorf("%s: GPU instance %d has no profile of a compute instance that has all of it", what, instance)
		}
		_, ret = gi.CreateComputeInstance(&largest)
		return check(what, "nvmlGpuInstanceCreateComputeInstance", ret)
	})
}

func (c *Cache) DestroyCompute(ctx context.Context, gpu string, instance, compute int) error {
	return c.partition(ctx, gpu, func(_ reader, dev nvml.Device, what string) error {
		gi, ret := dev.GetGpuInstanceById(instance)
		if err := check(what, "nvmlDeviceGetGpuInstanceById", ret); err != nil {
			return err
		}
		ci, ret := gi.GetComputeInstanceById(compute)
		if err := check(what, "nvmlGpuInstanceGetComputeInstanceById", ret); err != nil {
			return err
		}
		return check(what, "nvmlComputeInstanceDestroy", ci.Destroy())
	})
}

func (c *Cache) DestroyInstance(ctx context.Context, gpu string, instance int) error {
	return c.partition(ctx, gpu, func(_ reader, dev nvml.Device, what string) error {
		gi, ret := dev.GetGpuInstanceById(instance)
		if err := check(what, "nvmlDeviceGetGpuInstanceById", ret); err != nil {
			return err
		}
		return check(what, "nvmlGpuInstanceDestroy", gi.Destroy())
	})
}

// InUse returns whether an error is NVML's of an instance that a client has.
func InUse(err error) bool { return errors.Is(err, nvml.ERROR_IN_USE) }

// readProfiles reads what can be made of a GPU in MIG mode, and what is made.
func (r reader) readProfiles(gpu *GPU, dev nvml.Device) error {
	for _, symbol := range instanceSymbols {
		if !r.has(symbol) {
			return nil
		}
	}
	what := gpu.Label()
	infos, err := instanceProfiles(dev, what)
	if err != nil {
		return err
	}
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := dev.GetGpuInstanceProfileInfoV(kind).V2()
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if err := check(what, "nvmlDeviceGetGpuInstanceProfileInfoV", ret); err != nil {
			return err
		}
		name := profileNamed(cString(info.Name[:]))
		if name == "" {
			return fmt.Errorf("%s: nvmlDeviceGetGpuInstanceProfileInfoV: %q has no profile", what, cString(info.Name[:]))
		}
		places, ret := dev.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: info.Id, InstanceCount: info.InstanceCount})
		if err := check(what, "nvmlDeviceGetGpuInstancePossiblePlacements", ret); err != nil {
			return err
		}
		p := hardware.MIGProfile{ID: int(info.Id), Name: name, MemoryMiB: int64(info.MemorySizeMB), Slices: int(info.SliceCount), Most: int(info.InstanceCount)}
		for _, place := range places {
			p.Places = append(p.Places, hardware.Place{Start: int(place.Start), Size: int(place.Size)})
		}
		gpu.Profiles = append(gpu.Profiles, p)
	}
	gpu.Instances, err = r.instances(dev, infos, what)
	return err
}

// profileNamed returns the profile of a name with "MIG " before it or without: NVML does not document which.
func profileNamed(name string) string { return cmp.Or(profileOf(name), profileOf("MIG "+name)) }

func instanceProfiles(dev nvml.Device, what string) (all []nvml.GpuInstanceProfileInfo, err error) {
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := dev.GetGpuInstanceProfileInfo(kind)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT { // the latter: a kind that is newer than the driver
			continue
		}
		if err := check(what, "nvmlDeviceGetGpuInstanceProfileInfo", ret); err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func computeProfiles(gi nvml.GpuInstance, what string) (all []nvml.ComputeInstanceProfileInfo, err error) {
	for kind := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(kind, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if err := check(what, "nvmlGpuInstanceGetComputeInstanceProfileInfo", ret); err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

type instanceIDs struct{ instance, compute int }

func (r reader) instances(dev nvml.Device, profiles []nvml.GpuInstanceProfileInfo, what string) (all []hardware.GPUInstance, err error) {
	uuids, err := migUUIDs(dev, what)
	if err != nil {
		return nil, err
	}
	for _, p := range profiles {
		found, ret := dev.GetGpuInstances(&p)
		if err := check(what, "nvmlDeviceGetGpuInstances", ret); err != nil {
			return nil, err
		}
		for _, gi := range found {
			info, ret := gi.GetInfo()
			if err := check(what, "nvmlGpuInstanceGetInfo", ret); err != nil {
				return nil, err
			}
			instance := hardware.GPUInstance{ID: int(info.Id), Profile: int(info.ProfileId), Place: hardware.Place{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}}
			kinds, err := computeProfiles(gi, what)
			if err != nil {
				return nil, err
			}
			for _, kind := range kinds {
				computes, ret := gi.GetComputeInstances(&kind)
				if err := check(what, "nvmlGpuInstanceGetComputeInstances", ret); err != nil {
					return nil, err
				}
				for _, ci := range computes {
					info, ret := ci.GetInfo()
					if err := check(what, "nvmlComputeInstanceGetInfo", ret); err != nil {
						return nil, err
					}
					instance.Compute = append(instance.Compute, hardware.ComputeInstance{ID: int(info.Id), UUID: uuids[instanceIDs{instance.ID, int(info.Id)}]})
				}
			}
			all = append(all, instance)
		}
	}
	return all, nil
}

func migUUIDs(dev nvml.Device, what string) (map[instanceIDs]string, error) {
	uuids := map[instanceIDs]string{}
	places, ret := dev.GetMaxMigDeviceCount()
	if err := check(what, "nvmlDeviceGetMaxMigDeviceCount", ret); err != nil {
		return nil, err
	}
	for place := range places {
		mig, ret := dev.GetMigDeviceHandleByIndex(place)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		err := check(what, "nvmlDeviceGetMigDeviceHandleByIndex", ret)
		uuid := ask(&err, what, "nvmlDeviceGetUUID", mig.GetUUID)
		instance := ask(&err, what, "nvmlDeviceGetGpuInstanceId", mig.GetGpuInstanceId)
		compute := ask(&err, what, "nvmlDeviceGetComputeInstanceId", mig.GetComputeInstanceId)
		if err != nil {
			return nil, err
		}
		uuids[instanceIDs{instance, compute}] = uuid
	}
	return uuids, nil
}
