// Package view reads a node's grants and use from node.json, the ledger and the usage files. It takes no lock.
package view

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

// Node is a node's GPUs and containers, as in `gpuslice status -o json` and the agent's /api/v1/view.
type Node struct {
	Name          string      `json:"name"`
	DriverVersion string      `json:"driverVersion"`
	CUDAVersion   string      `json:"cudaVersion"`
	GPUsReadAt    time.Time   `json:"gpusReadAt"`
	GPUs          []GPU       `json:"gpus"`
	Containers    []Container `json:"containers"`
	// Violations are the audit's, of now; only in an agent's view.
	Violations []Violation `json:"violations,omitempty"`
	Problems   []string    `json:"problems,omitempty"`
}

// Violation is a process that uses a GPU beside or beyond its claim.
type Violation struct {
	// Node is set by Add.
	Node      string    `json:"node,omitempty"`
	Kind      string    `json:"kind"`
	Container string    `json:"container,omitempty"` // namespace/pod/container; empty: none
	Detail    string    `json:"detail"`
	Since     time.Time `json:"since"`
}

type GPU struct {
	// Node is set by Add.
	Node  string `json:"node,omitempty"`
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // a MIG device has its GPU's
	Model string `json:"model"`
	// MIGProfile is set for MIG devices.
	MIGProfile        string `json:"migProfile,omitempty"`
	MIG               *MIG   `json:"-"`
	MemoryMiB         int64  `json:"memoryMiB"`
	GrantableMiB      int64  `json:"grantableMemoryMiB"`
	GrantedMemoryMiB  int64  `json:"grantedMemoryMiB"`
	GrantableCores    int    `json:"grantableCores"`
	GrantedCores      int    `json:"grantedCores"`
	GrantableReplicas int    `json:"grantableContainers"`
	GrantedContainers int    `json:"containers"`
	// UsedBytes is from the usage files, up to each container's limit.
	UsedBytes uint64 `json:"usedBytes"`
	Healthy   bool   `json:"healthy"`
	Unhealthy string `json:"unhealthy,omitempty"`
	// Cordoned: it gets no new containers (gpuslice cordon on the node).
	Cordoned bool `json:"cordoned,omitempty"`
	// ComputeSource is where CoreUsedPercent of the shares comes from; empty: not known yet, and of MIG devices.
	ComputeSource nvidia.TimeSource `json:"computeSource,omitempty"`
	// Telemetry is from NVML; optional.
	Telemetry *nvidia.Telemetry `json:"telemetry,omitempty"`
}

// MIG has NVML's IDs of a MIG device.
type MIG struct {
	GPU                          string
	GPUInstance, ComputeInstance int
}

type Container struct {
	// Node is set by Add.
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
	// Blocks are the GPUs that a container with an unknown grant blocks; empty with State "blocking": all.
	Blocks []string `json:"blocks,omitempty"`
	// UsageProblem is why the usage file can't be read: its use counts as 0.
	UsageProblem string `json:"usageProblem,omitempty"`
	// UsageUnknown: the file has another version.
	UsageUnknown bool `json:"usageUnknown,omitempty"`

	// problem has all problems of the container.
	problem string
}

// Share is a container's share of a GPU, and its use.
type Share struct {
	UUID        string `json:"uuid"`
	MemoryMiB   int64  `json:"memoryMiB"`
	CorePercent int    `json:"cores"`
	UsedBytes   uint64 `json:"usedBytes"`
	// ContextBytes is the part of UsedBytes in CUDA contexts.
	ContextBytes uint64 `json:"contextBytes"`
	// ResidueBytes is what the driver counts beyond that.
	ResidueBytes uint64 `json:"residueBytes"`
	Processes    int    `json:"processes"`
	// Time with work on the GPU, time that launches waited, and launches; by the limiter.
	ComputeNanoseconds   uint64 `json:"computeNs"`
	ThrottledNanoseconds uint64 `json:"throttledNs"`
	Launches             uint64 `json:"launches"`
	// LastLaunch has a precision of some milliseconds; zero: never, or unknown.
	LastLaunch         time.Time `json:"lastLaunch,omitzero"`
	RefusedAllocations uint64    `json:"refusedAllocations"`
	// CoreUsedPercent is the recent part of the GPU's time, from the GPU's ComputeSource; optional.
	CoreUsedPercent *float64 `json:"coreUsedPercent,omitempty"`
	// HoldsSince: since then a kernel holds the GPU beyond the share, while others wait. Without an agent it is as long ago as the container's debt.
	HoldsSince time.Time `json:"holdsSince,omitzero"`
}

// Add adds another node's GPUs, containers and problems with the node's name.
func (n *Node) Add(name string, other Node) {
	for _, c := range other.GPUs {
		c.Node = name
		n.GPUs = append(n.GPUs, c)
	}
	for _, c := range other.Containers {
		c.Node = name
		n.Containers = append(n.Containers, c)
	}
	for _, v := range other.Violations {
		v.Node = name
		n.Violations = append(n.Violations, v)
	}
	for _, p := range other.Problems {
		n.Problems = append(n.Problems, "node "+name+": "+p)
	}
}

const (
	telemetryInterval = 5 * time.Second
	// telemetryStart is the same before the first result.
	telemetryStart = telemetryInterval / 20
	// telemetryKept is how long a result is valid: NVML can hang with a GPU.
	telemetryKept = 30 * time.Second
	useKept       = 10 * time.Second
)

type LiveConfig struct {
	// Snapshot and Dir are the ledger's.
	Snapshot func(context.Context) (*ledger.Snapshot, error)
	Dir      func(id string) string
	Node     func() node.File
	Cordoned func() ([]string, error)
	// Telemetry reads NVML. It can hang: only Run calls it.
	Telemetry func(context.Context) (map[string]nvidia.Telemetry, error)
	// Use returns the containers' use of the GPUs; optional.
	Use func() *feedback.Use
	// Holds returns the kernels that hold a GPU; optional.
	Holds func() []feedback.Hold
	Log   *slog.Logger
}

// Live is the view of an agent, with telemetry. It is safe for concurrent use.
type Live struct {
	config    LiveConfig
	telemetry atomic.Pointer[map[string]nvidia.Telemetry]
	now       func() time.Time
}

// NewLive returns a view. Without Run it has no telemetry.
func NewLive(c LiveConfig) *Live {
	l := &Live{config: c, now: time.Now}
	l.telemetry.Store(&map[string]nvidia.Telemetry{})
	return l
}

// Run reads NVML until ctx ends.
func (l *Live) Run(ctx context.Context) {
	var problem logonce.Problem
	begun := false
	periodic.Vary(ctx, nil, func() time.Duration {
		err := l.ReadTelemetry(ctx)
		begun = begun || err == nil || len(*l.telemetry.Load()) > 0
		if err != nil && !begun { // NVML is being opened
			return telemetryStart
		}
		if ctx.Err() == nil {
			problem.Warn(l.config.Log, "no telemetry of some GPUs", err)
		}
		return telemetryInterval
	})
}

func (l *Live) ReadTelemetry(ctx context.Context) error {
	read, err := l.config.Telemetry(ctx)
	if read != nil {
		l.telemetry.Store(&read)
	}
	return err
}

// Read returns the node with the last telemetry. It does not wait for NVML.
func (l *Live) Read(ctx context.Context) (Node, error) {
	snapshot, err := l.config.Snapshot(ctx)
	if err != nil {
		return Node{}, err
	}
	cordoned, err := l.config.Cordoned()
	n := compose(snapshot, l.config.Node(), cordoned, containers(snapshot, l.config.Dir))
	if err != nil {
		n.Problems = append(n.Problems, err.Error())
	}
	now := l.now()
	telemetry := *l.telemetry.Load()
	for i := range n.GPUs {
		c := &n.GPUs[i]
		if t, known := telemetry[c.UUID]; known && now.Sub(t.Taken) < telemetryKept {
			c.Telemetry = &t
		}
	}
	if l.config.Holds != nil {
		hold(n.Containers, l.config.Holds())
	}
	if l.config.Use == nil {
		return n, nil
	}
	if use := l.config.Use(); use != nil && now.Sub(use.At) < useKept {
		seen(n.Containers, use)
	}
	return n, nil
}

func hold(all []Container, holds []feedback.Hold) {
	for _, h := range holds {
		for i := range all {
			for j := range all[i].Shares {
				if s := &all[i].Shares[j]; all[i].ContainerID == h.Container && s.UUID == h.GPU {
					s.HoldsSince = h.Since.UTC()
				}
			}
		}
	}
}

func seen(all []Container, use *feedback.Use) {
	percents := make([]float64, 0, len(all))
	for i := range all {
		c := &all[i]
		if c.State == string(ledger.StateReleased) {
			continue
		}
		for j := range c.Shares {
			s := &c.Shares[j]
			if of, known := use.Percent[s.UUID]; known {
				percents = append(percents, of[c.ContainerID]) // 0 if missing
				s.CoreUsedPercent = &percents[len(percents)-1]
			}
			// The container's time is exact, but missing for launches without a limit.
			if at, worked := use.Worked[s.UUID][c.ContainerID]; worked && at.After(s.LastLaunch) {
				s.LastLaunch = at.UTC()
			}
		}
	}
}
