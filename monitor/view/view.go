// Package view puts together what a node's cards are granted and used for, out of the
// node's own files: node.json, the ledger and the containers' usage files. It asks no
// daemon, changes nothing and takes no lock: nobody waits for who looks.
//
// It imports grant, limiter, oci, gpu and monitor/node; the agent (its metrics, its page,
// its audit) and the CLI call it.
package view

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/claimed"
)

// Node is a node's cards and containers. Field names are those of the JSON that
// `gpuslice status -o json` and the agent's /api/v1/view give.
type Node struct {
	Name          string      `json:"name"`
	DriverVersion string      `json:"driverVersion"`
	CUDAVersion   string      `json:"cudaVersion"`
	CardsReadAt   time.Time   `json:"cardsReadAt"`
	Cards         []Card      `json:"cards"`
	Containers    []Container `json:"containers"`
	// Problems are what could not be read, for people.
	Problems []string `json:"problems,omitempty"`
}

// Card is one card, or one MIG device: what it has and what of it is granted.
type Card struct {
	// Node is the card's, where several nodes are shown as one (Add).
	Node  string `json:"node,omitempty"`
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // the card's, also of its MIG devices
	Model string `json:"model"`
	// MIGProfile is there of MIG devices.
	MIGProfile        string `json:"migProfile,omitempty"`
	MemoryMiB         int64  `json:"memoryMiB"`
	GrantableMiB      int64  `json:"grantableMemoryMiB"`
	GrantedMemoryMiB  int64  `json:"grantedMemoryMiB"`
	GrantableCores    int    `json:"grantableCores"`
	GrantedCores      int    `json:"grantedCores"`
	GrantableSlots    int    `json:"grantableContainers"`
	GrantedContainers int    `json:"containers"`
	// UsedBytes is what the containers account for, not what NVML sees.
	UsedBytes uint64 `json:"usedBytes"`
	// Healthy is false where the agent has said why it isn't, in Unhealthy.
	Healthy   bool   `json:"healthy"`
	Unhealthy string `json:"unhealthy,omitempty"`
	// Cordoned says that it gets no new container (gpuslice cordon on the node).
	Cordoned bool `json:"cordoned,omitempty"`
	// Telemetry is what NVML said last; nil where nobody asked it.
	Telemetry *gpu.Telemetry `json:"telemetry,omitempty"`
}

// Container is one entry of the ledger.
type Container struct {
	// Node is the container's, where several nodes are shown as one (Add).
	Node        string    `json:"node,omitempty"`
	ContainerID string    `json:"containerID"`
	Pod         string    `json:"pod,omitempty"` // namespace/name
	PodUID      string    `json:"podUID,omitempty"`
	Name        string    `json:"container"`
	Owner       string    `json:"owner"`
	State       string    `json:"state"`
	Enforcement string    `json:"enforcement"`
	CreatedAt   time.Time `json:"createdAt"`
	Shares      []Share   `json:"shares"`
	// Blocks are the cards that nothing is granted on because of this container, whose
	// grant is not known. It is there with State "blocking" only; empty: all cards.
	Blocks []string `json:"blocks,omitempty"`
	// UsageProblem is why the container's usage file can't be read: its use counts as none.
	UsageProblem string `json:"usageProblem,omitempty"`
}

// Share is a container's part of one card, and what it uses of it.
type Share struct {
	UUID        string `json:"uuid"`
	MemoryMiB   int64  `json:"memoryMiB"`
	CorePercent int    `json:"cores"`
	UsedBytes   uint64 `json:"usedBytes"`
	// ContextBytes are those of UsedBytes that CUDA contexts have.
	ContextBytes uint64 `json:"contextBytes"`
	// ResidueBytes is what the driver sees of the container beyond that.
	ResidueBytes uint64 `json:"residueBytes"`
	Processes    int    `json:"processes"`
	// Compute time while the share was enforced, in all: what launches were charged, how
	// long they waited for it, and how many they were.
	ComputeNanoseconds   uint64 `json:"computeNs"`
	ThrottledNanoseconds uint64 `json:"throttledNs"`
	Launches             uint64 `json:"launches"`
	// LastLaunch is when it launched last, to some milliseconds; zero: never, or not known.
	LastLaunch time.Time `json:"lastLaunch,omitzero"`
	// RefusedAllocations are those that the limit has refused.
	RefusedAllocations uint64 `json:"refusedAllocations"`
	// CoreUsedPercent is the part of the card's time that NVML says it had, lately; nil
	// where nobody asked NVML.
	CoreUsedPercent *float64 `json:"coreUsedPercent,omitempty"`
}

// Read reads the node's files. The cards are optional, since the ledger says
// something without them; an unreadable ledger is an error.
func Read(ctx context.Context, stateDir string) (Node, error) {
	var n Node
	ledger, err := grant.OpenReadOnly(stateDir, grant.WithRecovery(oci.RecoverShares))
	if errors.Is(err, fs.ErrPermission) {
		return n, fmt.Errorf("%w: run it as root", err)
	}
	if err != nil {
		return n, fmt.Errorf("%w (--state-dir names its folder)", err)
	}
	snapshot, err := ledger.Snapshot(ctx)
	if err != nil {
		return n, err
	}
	if snapshot.Unsettled {
		n.Problems = append(n.Problems, "the ledger is being changed, or gpuslice-agent was killed while it changed it: what is shown may be of different moments")
	}
	file, err := node.Read(stateDir)
	if err != nil {
		n.Problems = append(n.Problems, "cards: "+err.Error())
	}
	n.Name, n.DriverVersion, n.CUDAVersion, n.CardsReadAt = file.Name, file.Node.DriverVersion, file.Node.CUDAVersion, file.WrittenAt
	for _, fault := range file.Node.Faults {
		n.Problems = append(n.Problems, fault.Message)
	}

	used := map[string]uint64{}
	n.Containers = []Container{}
	for _, e := range snapshot.Entries {
		c, problem := container(e, ledger.Folder(e.ContainerID))
		if problem != "" {
			n.Problems = append(n.Problems, problem)
		}
		if _, err := claimed.Read(ledger.Folder(e.ContainerID)); errors.Is(err, claimed.ErrDamaged) {
			n.Problems = append(n.Problems, fmt.Sprintf("container %s: %v: its share is given back once no process uses the folder", e.ContainerID, err))
		}
		for _, s := range c.Shares {
			used[s.UUID] = add(used[s.UUID], s.UsedBytes)
		}
		n.Containers = append(n.Containers, c)
	}
	sort.SliceStable(n.Containers, func(i, j int) bool {
		a, b := n.Containers[i], n.Containers[j]
		if a.Pod != b.Pod {
			return a.Pod < b.Pod
		}
		return a.Name < b.Name
	})

	cordoned, err := grant.Cordoned(stateDir)
	if err != nil {
		n.Problems = append(n.Problems, err.Error())
	}
	n.Cards = []Card{}
	row := func(c Card, card string) {
		device, _ := file.Device(c.UUID) // one that isn't offered has nothing to grant
		booked := snapshot.Cards[c.UUID]
		c.GrantableMiB, c.GrantedMemoryMiB = device.MemoryMiB, booked.MemoryMiB
		c.GrantableCores, c.GrantedCores = device.CorePercent, booked.CorePercent
		c.GrantableSlots, c.GrantedContainers = device.Slots, booked.Slots
		c.UsedBytes = used[c.UUID]
		c.Unhealthy = file.Unhealthy(c.UUID, card)
		c.Healthy = c.Unhealthy == ""
		c.Cordoned = slices.Contains(cordoned, c.UUID)
		n.Cards = append(n.Cards, c)
	}
	for _, c := range file.Node.Cards {
		row(Card{UUID: c.UUID, Index: c.Index, Model: c.Model, MemoryMiB: c.MemoryMiB}, c.UUID)
		for _, d := range c.MIG {
			row(Card{UUID: d.UUID, Index: c.Index, MIGProfile: d.Profile, Model: c.Model + " MIG " + d.Profile, MemoryMiB: d.MemoryMiB}, c.UUID)
		}
	}
	return n, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// add is a sum of what tenants say, which ends at the largest number.
func add(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint64
}

// container is a ledger's entry with what its usage file says.
func container(e grant.Entry, folder string) (c Container, problem string) {
	c = Container{
		ContainerID: e.ContainerID, PodUID: e.PodUID, Name: e.Container, Owner: e.Owner,
		State: string(e.State), Enforcement: e.Mode, CreatedAt: e.CreatedAt, Shares: []Share{}, Blocks: e.Blocks,
	}
	if e.PodName != "" {
		c.Pod = e.PodNamespace + "/" + e.PodName
	}
	var errs []error
	if e.Problem != nil {
		errs = append(errs, e.Problem)
	}
	usage, err := limiter.ReadUsage(filepath.Join(folder, "usage"))
	// It may have been removed since, and has none where it is made again to block.
	if err != nil && e.State != grant.StateReleased && e.State != grant.StateBlocking && exists(folder) {
		errs = append(errs, err)
		c.UsageProblem = err.Error()
	}
	if err := errors.Join(errs...); err != nil {
		problem = "container " + e.ContainerID + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	// A file that can't be read is reported by who enforces it; here it is a number less.
	states, _ := limiter.ReadCores(filepath.Join(folder, "limits"))
	for i, s := range e.Shares {
		share := Share{UUID: s.UUID, MemoryMiB: s.MemoryMiB, CorePercent: s.CorePercent}
		// By position: what the file itself says of its cards is the tenant's to write.
		if i < len(usage.Devices) {
			share.UsedBytes, share.Processes = usage.Devices[i].UsedBytes, usage.Devices[i].Processes
			share.ContextBytes = usage.Devices[i].ContextBytes
			cores := usage.Devices[i].Cores
			share.ComputeNanoseconds, share.ThrottledNanoseconds, share.Launches = cores.ChargedNanoseconds, cores.ThrottledNanoseconds, cores.Launches
		}
		if i < len(states) {
			share.ResidueBytes = states[i].ResidueBytes
		}
		c.Shares = append(c.Shares, share)
	}
	return c, problem
}
