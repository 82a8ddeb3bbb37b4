package nvidia

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// migSymbols are required for MIG. go-nvml ends the process when it calls a missing function.
var migSymbols = []string{
	"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
}

var attributeSymbols = []string{"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"}

func (r reader) readMIG(gpu *GPU) ([]Fault, error) {
	for _, symbol := range migSymbols {
		if !r.has(symbol) {
			return nil, nil
		}
	}
	what := gpu.Label()
	dev, ret := r.lib.DeviceGetHandleByIndex(gpu.Index)
	if err := check(what, "nvmlDeviceGetHandleByIndex", ret); err != nil {
		return nil, err
	}
	// The pending mode starts with the next reset of the GPU.
	current, _, ret := dev.GetMigMode()
	if err := optional(what, "nvmlDeviceGetMigMode", ret); err != nil {
		return nil, err
	}
	gpu.MIGCapable = ret == nvml.SUCCESS
	if !gpu.MIGCapable || current != nvml.DEVICE_MIG_ENABLE {
		return nil, nil
	}
	gpu.MIGEnabled = true
	places, ret := dev.GetMaxMigDeviceCount()
	if err := check(what, "nvmlDeviceGetMaxMigDeviceCount", ret); err != nil {
		return nil, err
	}
	var faults []Fault
	if r.profiles {
		if err := r.readProfiles(gpu, dev); err != nil {
			gpu.Profiles = nil
			faults = append(faults, Fault{Index: gpu.Index, GPU: gpu.UUID, Err: err, Message: err.Error()})
		}
	}
	for place := range places {
		d, found, err := r.migDevice(gpu, dev, place)
		if err != nil {
			faults = append(faults, Fault{Index: gpu.Index, UUID: d.UUID, GPU: gpu.UUID, Err: err, Message: err.Error()})
			continue
		}
		if found {
			gpu.MIG = append(gpu.MIG, d)
		}
	}
	return faults, nil
}

// migDevice reads one of a GPU's places; found is false if it is or becomes empty.
func (r reader) migDevice(gpu *GPU, parent nvml.Device, place int) (d MIGDevice, found bool, err error) {
	d.GPU = gpu.UUID
	what := fmt.Sprintf("MIG device %d of %s", place, gpu.Label())
	dev, ret := parent.GetMigDeviceHandleByIndex(place)
	switch ret {
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
		return d, false, nil
	}
	if err := check(what, "nvmlDeviceGetMigDeviceHandleByIndex", ret); err != nil {
		return d, false, err
	}
	err = r.migFacts(&d, dev, gpu.MemoryMiB, what)
	if errors.Is(err, nvml.ERROR_NOT_FOUND) || errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) {
		return d, false, nil // removed meanwhile: the handle is invalid
	}
	return d, err == nil, err
}

func (r reader) migFacts(d *MIGDevice, dev nvml.Device, gpuMiB int64, what string) error {
	uuid, ret := dev.GetUUID()
	if err := check(what, "nvmlDeviceGetUUID", ret); err != nil {
		return err
	}
	// Drivers before 470 use MIG-GPU-<GPU UUID>/<instance>/<instance>, which containers' variables
	// and CDI no longer support.
	if !migUUID.MatchString(uuid) {
		return fmt.Errorf("%s: nvmlDeviceGetUUID: %q is not of the form MIG-<UUID>: update the driver to 470 or newer", what, uuid)
	}
	d.UUID = uuid
	what += " (" + uuid + ")"

	var err error
	d.MemoryMiB = memoryMiB(&err, dev, what)
	d.GPUInstance = ask(&err, what, "nvmlDeviceGetGpuInstanceId", dev.GetGpuInstanceId)
	d.ComputeInstance = ask(&err, what, "nvmlDeviceGetComputeInstanceId", dev.GetComputeInstanceId)
	name, _ := askOptional(&err, what, "nvmlDeviceGetName", dev.GetName)
	var attributes nvml.DeviceAttributes // without slices if unknown
	if r.has(attributeSymbols[0]) || r.has(attributeSymbols[1]) {
		attributes, _ = askOptional(&err, what, "nvmlDeviceGetAttributes", dev.GetAttributes)
	}
	if err != nil {
		return err
	}
	d.Slices = int(attributes.ComputeInstanceSliceCount)
	if d.Profile = cmp.Or(profileOf(name), profileFrom(attributes, gpuMiB)); d.Profile == "" {
		return fmt.Errorf("%s: nvmlDeviceGetName: %q has no profile, and nvmlDeviceGetAttributes returned none: update the driver", what, name)
	}
	return nil
}

var (
	migUUID    = regexp.MustCompile(`^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	migProfile = regexp.MustCompile(`^([1-9][0-9]*c\.)?[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z0-9]+(\.[a-z0-9]+)*)*$`)
)

// profileOf returns the profile at the end of a name such as "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
func profileOf(name string) string {
	i := strings.LastIndex(name, "MIG ")
	if i < 0 || !migProfile.MatchString(name[i+len("MIG "):]) {
		return ""
	}
	return name[i+len("MIG "):]
}

// profileFrom computes the profile from attributes: memory is in eighths of the GPU's, in GB; one
// slice with the optical flow engine is the profile with the media extensions.
func profileFrom(a nvml.DeviceAttributes, gpuMiB int64) string {
	if a.GpuInstanceSliceCount == 0 || a.MemorySizeMB == 0 || gpuMiB <= 0 {
		return ""
	}
	const eighths, mibPerGB = 8, 1024
	share := math.Ceil(float64(a.MemorySizeMB)/float64(gpuMiB)*eighths) / eighths
	gb := math.Round(share * math.Ceil(float64(gpuMiB)/mibPerGB))
	name := fmt.Sprintf("%dg.%.0fgb", a.GpuInstanceSliceCount, gb)
	if c := a.ComputeInstanceSliceCount; c != 0 && c < a.GpuInstanceSliceCount {
		name = fmt.Sprintf("%dc.%s", c, name)
	}
	if a.GpuInstanceSliceCount == 1 && a.SharedOfaCount > 0 {
		name += "+me"
	}
	return name
}
