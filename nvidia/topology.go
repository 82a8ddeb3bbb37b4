package nvidia

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Level is the PCIe distance of two GPUs: higher is nearer. The zero value is the farthest, also
// used for unknown.
type Level int

const (
	LevelSystem     Level = iota // SYS, SOC: across sockets
	LevelNode                    // NODE: across host bridges of a NUMA node
	LevelHostBridge              // PHB: across one host bridge
	LevelSwitches                // PXB: across several PCIe switches
	LevelSwitch                  // PIX: across one PCIe switch
	LevelBoard                   // PSB: on the same board
)

var levelWords = [...]string{"SYS", "NODE", "PHB", "PXB", "PIX", "PSB"}

// String returns nvidia-smi's word.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelWords) {
		return levelWords[LevelSystem]
	}
	return levelWords[l]
}

// MarshalText writes nvidia-smi's word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads nvidia-smi's word; an unknown one is the farthest level.
func (l *Level) UnmarshalText(text []byte) error {
	*l = Level(max(slices.Index(levelWords[:], string(text)), int(LevelSystem)))
	return nil
}

// Pair is the connection of two GPUs.
type Pair struct {
	// Level is by PCIe.
	Level Level `json:"level"`
	// NVLinks is the number of active links, direct or by switch.
	NVLinks int `json:"nvlinks,omitempty"`
}

// Score is 10 (across sockets) to 60 (same board) plus 100 per link, as in HAMi's node annotation
// hami.io/node-nvidia-score.
func (p Pair) Score() int { return 10*(int(p.Level)+1) + 100*p.NVLinks }

// PairOf returns the pair with a score; the zero Pair if there is none.
func PairOf(score int) Pair {
	level := score%100/10 - 1
	if score < 0 || level < int(LevelSystem) || level > int(LevelBoard) {
		return Pair{}
	}
	return Pair{Level: Level(level), NVLinks: score / 100}
}

// Topology has the connections of a node's GPUs.
type Topology struct {
	UUIDs []string `json:"uuids"`
	// Pairs has a row and a column per GPU, in the same order. It is symmetric; the diagonal is
	// zero.
	Pairs [][]Pair `json:"pairs"`
}

func newTopology(uuids []string) Topology {
	t := Topology{UUIDs: slices.Clone(uuids), Pairs: make([][]Pair, len(uuids))}
	for i := range t.Pairs {
		t.Pairs[i] = make([]Pair, len(uuids))
	}
	return t
}

func (t Topology) set(i, j int, p Pair) { t.Pairs[i][j], t.Pairs[j][i] = p, p }

// Pair returns known = false for an unknown GPU, or the same one.
func (t Topology) Pair(a, b string) (p Pair, known bool) {
	i, j := slices.Index(t.UUIDs, a), slices.Index(t.UUIDs, b)
	if i < 0 || j < 0 || i == j {
		return Pair{}, false
	}
	return t.Pairs[i][j], true
}

// Link is the [Pair.Score] of two GPUs, 0 if unknown.
func (t Topology) Link(a, b string) int {
	p, known := t.Pair(a, b)
	if !known {
		return 0
	}
	return p.Score()
}

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
	t := newTopology(uuids)
	for i, a := range gpus {
		for j, b := range gpus[:i] {
			t.set(i, j, Pair{Level: r.level(a, b), NVLinks: links(a, b)})
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
