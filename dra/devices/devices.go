// Package devices describes a node's GPUs as devices of ResourceSlices ([Node.Pools]), and reads what a ResourceClaim has
// of them ([Node.Allocation]). It reads and writes nothing.
package devices

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// Node is a node as its ResourceSlices show it.
type Node struct {
	Name          string
	DriverVersion string
	CUDAVersion   string
	// MemoryEnforcement is what limits the memory of containers with ResourceClaims (oci.MemoryEnforcement).
	MemoryEnforcement string
	// NotConnected: new containers get no GPU now.
	NotConnected bool
	Devices      []Device
	// Places are MIG devices that are made when a ResourceClaim has them.
	Places []Place
}

// Device is a GPU or a MIG device that the node offers.
type Device struct {
	// Capacity is what can be granted of it.
	Capacity grant.GPU
	// GPU is the device's GPU, Profile the MIG device's kind; "": it is a GPU.
	GPU     hardware.GPU
	Profile string
	// PCIeRoot is Kubernetes' name of the PCIe root, "pci0000:00"; "": unknown.
	PCIeRoot string
	// Problem is why the device is unhealthy; "": it is healthy.
	Problem  string
	Cordoned bool
	// OnRequest: it was made at a place, which is offered instead.
	OnRequest bool
}

// Names of attributes and capacities. Those of attributes are NVIDIA's DRA driver's, if it has one.
const (
	attributeType       = api.DRAAttributeType
	attributeUUID       = api.DRAAttributeUUID
	attributeModel      = api.DRAAttributeModel
	attributeNUMA       = api.DRAAttributeNUMA
	attributeIsolation  = api.DRAAttributeIsolation
	attributeDriver     = "driverVersion"
	attributeCUDA       = "cudaDriverVersion"
	attributeCapability = "cudaComputeCapability"
	attributeProfile    = "profile"
	attributeParent     = "parentUUID"

	typeGPU = api.DRATypeGPU
	typeMIG = api.DRATypeMIG

	capacityMemory = api.DRACapacityMemory
	capacityCores  = api.DRACapacityCores
	// capacitySlots is the number of containers; each has one.
	capacitySlots = "slots"
)

// Name is the device's name in its pool. It follows from the UUID: NVML's indices change.
func (d Device) Name() string {
	kind, uuid, _ := strings.Cut(d.Capacity.UUID, "-")
	return strings.ToLower(kind) + "-" + uuid
}

// Pool is the name of the device's pool on the node: one for each model, because autoscalers want the devices of a pool to
// be of one kind.
func (n Node) Pool(d Device) string {
	name := n.Name + "/" + slug(d.GPU.Model)
	if len(name) > resourceapi.PoolNameMaxLength {
		sum := sha256.Sum256([]byte(n.Name))
		name = hex.EncodeToString(sum[:16]) + "/" + slug(d.GPU.Model)
	}
	return name
}

// slug is a DNS label of a model's name: "NVIDIA H200" is h200.
func slug(model string) string {
	words := strings.FieldsFunc(strings.ToLower(model), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	if len(words) > 1 && words[0] == "nvidia" {
		words = words[1:]
	}
	const longest = 63
	name := strings.Join(words, "-")
	name = strings.TrimRight(name[:min(len(name), longest)], "-")
	if name == "" {
		return typeGPU
	}
	return name
}

// Pools are the node's pools by name.
func (n Node) Pools() map[string]resourceslice.Pool {
	pools := map[string]resourceslice.Pool{}
	add := func(name string, device resourceapi.Device) {
		pool := pools[name]
		last := len(pool.Slices) - 1
		if last < 0 || len(pool.Slices[last].Devices) == resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			pool.Slices = append(pool.Slices, resourceslice.Slice{})
			last++
		}
		pool.Slices[last].Devices = append(pool.Slices[last].Devices, device)
		pools[name] = pool
	}
	for _, d := range n.Devices {
		if !d.OnRequest {
			add(n.Pool(d), n.device(d))
		}
	}
	for _, p := range n.Places {
		add(n.Pool(p.Device), n.place(p))
	}
	for name, sets := range n.counters() { // a slice has devices or counters
		pool := pools[name]
		for some := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
			pool.Slices = append(pool.Slices, resourceslice.Slice{SharedCounters: some})
		}
		pools[name] = pool
	}
	return pools
}

func (n Node) device(d Device) resourceapi.Device {
	device := resourceapi.Device{Name: d.Name(), Attributes: n.attributes(d), Capacity: d.capacity()}
	if !d.isMIG() {
		device.AllowMultipleAllocations = new(true)
	}
	device.Taints = n.taints(d)
	return device
}

func (n Node) taints(d Device) (taints []resourceapi.DeviceTaint) {
	for _, taint := range []struct {
		key     string
		applies bool
	}{{api.TaintUnhealthy, d.Problem != ""}, {api.TaintCordoned, d.Cordoned}, {api.TaintNotConnected, n.NotConnected}} {
		if taint.applies {
			taints = append(taints, noSchedule(taint.key))
		}
	}
	return taints
}

func noSchedule(key string) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}
}

func (d Device) isMIG() bool { return grant.IsMIG(d.Capacity.UUID) }

func (n Node) attributes(d Device) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	text := func(name resourceapi.QualifiedName, value string) {
		if value = cut(value); value != "" {
			attributes[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	version := func(name resourceapi.QualifiedName, value string) {
		if value, ok := semantic(value); ok {
			attributes[name] = resourceapi.DeviceAttribute{VersionValue: &value}
		}
	}
	text(attributeType, typeGPU)
	text(attributeIsolation, api.IsolationOfShare(n.MemoryEnforcement, d.Capacity.MemoryMiB > d.GPU.MemoryMiB))
	if d.isMIG() || d.OnRequest {
		text(attributeType, typeMIG)
		text(attributeIsolation, api.IsolationHardware)
		text(attributeProfile, d.Profile)
		text(attributeParent, d.GPU.UUID)
	}
	if !d.OnRequest {
		text(attributeUUID, d.Capacity.UUID)
	}
	text(attributeModel, d.GPU.Model)
	if d.GPU.NUMANode != hardware.NUMAUnknown {
		attributes[attributeNUMA] = resourceapi.DeviceAttribute{IntValue: new(int64(d.GPU.NUMANode))}
	}
	version(attributeDriver, n.DriverVersion)
	version(attributeCUDA, n.CUDAVersion)
	version(attributeCapability, d.GPU.ComputeCapability)
	text(deviceattribute.StandardDeviceAttributePCIeRoot, d.PCIeRoot)
	if busID := hardware.SysfsBusID(d.GPU.PCIBusID); busID != "" {
		text(deviceattribute.StandardDeviceAttributePCIBusID, busID)
	}
	return attributes
}

// cut shortens a text to the API server's limit.
func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), resourceapi.DeviceAttributeMaxValueLength)], "")
}

// semantic makes a semantic version: three numbers without leading zeros.
func semantic(version string) (string, bool) {
	parts := strings.Split(version, ".")
	numbers := [3]uint64{}
	if len(parts) > len(numbers) {
		parts = parts[:len(numbers)]
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return "", false
		}
		numbers[i] = n
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2]), true
}

const mebibyte = 1 << 20

func mib(n int64) resource.Quantity { return *resource.NewQuantity(n*mebibyte, resource.BinarySI) }

func count(n int) resource.Quantity {
	return *resource.NewQuantity(int64(n), resource.DecimalSI)
}

func (d Device) capacity() map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	if d.isMIG() {
		return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{capacityMemory: {Value: mib(d.Capacity.MemoryMiB)}}
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		capacityMemory: {Value: mib(d.Capacity.MemoryMiB), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    new(mib(d.Capacity.MemoryMiB)),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(mib(1)), Step: new(mib(1))},
		}},
		capacityCores: {Value: count(d.Capacity.CorePercent), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    new(count(0)),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(count(0)), Max: new(count(min(d.Capacity.CorePercent, grant.MaxCorePercent))), Step: new(count(1))},
		}},
		capacitySlots: {Value: count(d.Capacity.Replicas), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:     new(count(1)),
			ValidValues: []resource.Quantity{count(1)},
		}},
	}
}
