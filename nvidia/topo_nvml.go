package nvidia

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The NVML functions for the topology. go-nvml's call of one that the library doesn't
// have ends the process, so they are looked up first.
const (
	ancestorSymbol   = "nvmlDeviceGetTopologyCommonAncestor"
	linkStateSymbol  = "nvmlDeviceGetNvLinkState"
	linkRemoteSymbol = "nvmlDeviceGetNvLinkRemotePciInfo"    // since driver 375, _v2 since 418
	linkTypeSymbol   = "nvmlDeviceGetNvLinkRemoteDeviceType" // since driver 465
)

// DiscoverTopology opens NVML, reads how the GPUs are connected, and closes NVML.
// The GPUs are those that [Discover] finds; what can't be found out of a pair is the
// farthest, never an error.
func DiscoverTopology(lib nvml.Interface) (Topology, error) {
	r := reader{lib: lib}
	if err := r.open(); err != nil {
		return Topology{}, err
	}
	t, err := r.topology()
	return t, errors.Join(err, r.close())
}

// connected is a GPU as its links are counted.
type connected struct {
	dev      nvml.Device
	pci      pciAddress
	direct   map[pciAddress]int // links by what they lead to
	switched int                // links to NVSwitches, which connect all such GPUs
}

type pciAddress struct{ domain, bus, device uint32 }

func addressOf(pci nvml.PciInfo) pciAddress { return pciAddress{pci.Domain, pci.Bus, pci.Device} }

// topology reads how the GPUs are connected that can be read.
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
			continue // lost: Discover says so
		}
		uuid, ret := dev.GetUUID()
		if ret != nvml.SUCCESS || uuid == "" || slices.Contains(uuids, uuid) {
			continue
		}
		uuids = append(uuids, uuid)
		gpus = append(gpus, r.connections(dev))
	}
	t := newTopology(uuids)
	for i, a := range gpus {
		for j, b := range gpus[:i] {
			t.set(i, j, Pair{Level: r.level(a, b), NVLinks: links(a, b)})
		}
	}
	return t, nil
}

// links counts the links of a pair: both ends have to say so.
func links(a, b connected) int {
	return min(a.direct[b.pci], b.direct[a.pci]) + min(a.switched, b.switched)
}

// level asks for the common ancestor.
func (r reader) level(a, b connected) Level {
	if !r.has(ancestorSymbol) {
		return LevelSystem
	}
	ancestor, ret := a.dev.GetTopologyCommonAncestor(b.dev)
	if ret != nvml.SUCCESS {
		return LevelSystem
	}
	switch ancestor {
	case nvml.TOPOLOGY_INTERNAL:
		return LevelBoard
	case nvml.TOPOLOGY_SINGLE:
		return LevelSwitch
	case nvml.TOPOLOGY_MULTIPLE:
		return LevelSwitches
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return LevelHostBridge
	case nvml.TOPOLOGY_NODE:
		return LevelNode
	default:
		return LevelSystem
	}
}

// connections counts a GPU's active links.
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

// toSwitch says whether a link leads to an NVSwitch. Libraries that can't tell count
// none: such a pair looks connected by PCIe alone.
func (r reader) toSwitch(dev nvml.Device, link int) bool {
	if !r.has(linkTypeSymbol) {
		return false
	}
	kind, ret := dev.GetNvLinkRemoteDeviceType(link)
	return ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
}

// remote is the address of what a link leads to.
func (r reader) remote(dev nvml.Device, link int) (address pciAddress, known bool) {
	if !r.has(linkRemoteSymbol) && !r.has(linkRemoteSymbol+"_v2") {
		return pciAddress{}, false
	}
	pci, ret := dev.GetNvLinkRemotePciInfo(link)
	return addressOf(pci), ret == nvml.SUCCESS
}

// has says whether the library has a function.
func (r reader) has(symbol string) bool { return r.lib.Extensions().LookupSymbol(symbol) == nil }
