package nvidia

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// These functions are looked up first: go-nvml ends the process when it calls one that the library
// lacks.
const (
	ancestorSymbol   = "nvmlDeviceGetTopologyCommonAncestor"
	linkStateSymbol  = "nvmlDeviceGetNvLinkState"
	linkRemoteSymbol = "nvmlDeviceGetNvLinkRemotePciInfo" // since driver 375, _v2 since 418
	linkTypeSymbol   = "nvmlDeviceGetNvLinkRemoteDeviceType"
)

// DiscoverTopology reads the connections of the GPUs. An unknown one is the farthest.
func DiscoverTopology(lib nvml.Interface) (Topology, error) {
	r := reader{lib: lib}
	if err := r.open(); err != nil {
		return Topology{}, err
	}
	t, err := r.topology()
	return t, errors.Join(err, r.close())
}

type connected struct {
	dev      nvml.Device
	pci      pciAddress
	direct   map[pciAddress]int
	switched int // links to NVSwitches, which connect all such GPUs
}

type pciAddress struct{ domain, bus, device uint32 }

func addressOf(pci nvml.PciInfo) pciAddress { return pciAddress{pci.Domain, pci.Bus, pci.Device} }

func (r reader) topology() (Topology, error) {
	count, ret := r.lib.DeviceGetCount()
	if err := check(theDriver, "nvmlDeviceGetCount", ret); err != nil {
		return Topology{}, err
	}
	var uuids []string
	var gpus []connected
	for i := range count {
		dev, ret := r.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // lost: a Fault of Discover
		}
		uuid, ret := dev.GetUUID()
		if ret != nvml.SUCCESS || uuid == "" || slices.Contains(uuids, uuid) {
			continue
		}
		uuids = append(uuids, uuid)
		gpus = append(gpus, r.connections(dev))
	}
	t := hardware.NewTopology(uuids)
	for i, a := range gpus {
		for j, b := range gpus[:i] {
			t.Set(i, j, Pair{Level: r.level(a, b), NVLinks: links(a, b)})
		}
	}
	return t, nil
}

func links(a, b connected) int {
	return min(a.direct[b.pci], b.direct[a.pci]) + min(a.switched, b.switched)
}

var levels = map[nvml.GpuTopologyLevel]Level{
	nvml.TOPOLOGY_INTERNAL:   LevelBoard,
	nvml.TOPOLOGY_SINGLE:     LevelSwitch,
	nvml.TOPOLOGY_MULTIPLE:   LevelSwitches,
	nvml.TOPOLOGY_HOSTBRIDGE: LevelHostBridge,
	nvml.TOPOLOGY_NODE:       LevelNode,
}

func (r reader) level(a, b connected) Level {
	if !r.has(ancestorSymbol) {
		return LevelSystem
	}
	ancestor, ret := a.dev.GetTopologyCommonAncestor(b.dev)
	if ret != nvml.SUCCESS {
		return LevelSystem
	}
	return levels[ancestor]
}

func (r reader) connections(dev nvml.Device) connected {
	c := connected{dev: dev, direct: map[pciAddress]int{}}
	pci, ret := dev.GetPciInfo()
	if ret != nvml.SUCCESS || !r.has(linkStateSymbol) {
		return c
	}
	c.pci = addressOf(pci)
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, ret := dev.GetNvLinkState(link); ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		if r.toSwitch(dev, link) {
			c.switched++
		} else if remote, known := r.remote(dev, link); known {
			c.direct[remote]++
		}
	}
	return c
}

// toSwitch is false if the library has no such function: such GPUs appear connected by PCIe only.
func (r reader) toSwitch(dev nvml.Device, link int) bool {
	if !r.has(linkTypeSymbol) {
		return false
	}
	kind, ret := dev.GetNvLinkRemoteDeviceType(link)
	return ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
}

func (r reader) remote(dev nvml.Device, link int) (address pciAddress, known bool) {
	if !r.has(linkRemoteSymbol) && !r.has(linkRemoteSymbol+"_v2") {
		return pciAddress{}, false
	}
	pci, ret := dev.GetNvLinkRemotePciInfo(link)
	return addressOf(pci), ret == nvml.SUCCESS
}

func (r reader) has(symbol string) bool { return r.lib.Extensions().LookupSymbol(symbol) == nil }
