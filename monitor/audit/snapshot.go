package audit

import (
	"slices"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
)

type Kind string

const (
	// UngrantedProcess: a container's process is on a GPU that the container was not granted.
	UngrantedProcess Kind = "ungranted-process"
	// NoLimiter: a process of a container with a share uses the driver without the limiter.
	NoLimiter Kind = "no-limiter"
	// OverLimit: a container has more GPU memory than its limit, according to NVML.
	OverLimit        Kind = "over-limit"
	DamagedUsageFile Kind = "damaged-usage-file"
	// ForeignFiles: a process has not mapped the limits and usage files of its claim.
	ForeignFiles Kind = "foreign-files"
	// ForeignDescriptor: a process has the device node of a GPU open without a grant.
	ForeignDescriptor Kind = "foreign-descriptor"
	// TamperedFiles: a process holds a lock or a lease on a file of its claim.
	TamperedFiles Kind = "tampered-files"
	// OverShare: a container has more compute time than its share according to NVML, while others wait. It is only reported.
	OverShare Kind = "over-share"
	// PrivilegedContainer: a container with a share has CAP_SYS_ADMIN. It is only reported.
	PrivilegedContainer Kind = "privileged-container"
	// HostProcess: a process outside of containers is on a GPU. It is only reported.
	HostProcess Kind = "host-process"
)

var Kinds = []Kind{UngrantedProcess, NoLimiter, ForeignFiles, OverLimit, DamagedUsageFile, TamperedFiles, ForeignDescriptor, OverShare, PrivilegedContainer, HostProcess}

// Container identifies a container and its pod, as far as known.
type Container struct {
	ID        string `json:"id,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	Name      string `json:"container,omitempty"`
}

func (c Container) String() string {
	switch {
	case c.Pod != "":
		return "container " + c.Name + " of pod " + c.Namespace + "/" + c.Pod
	case c.Name != "":
		return "container " + c.Name
	}
	return "container " + c.ID
}

type Claim struct {
	Container
	// Members are the containers that have the claim in common; then the ID above is the claim's.
	Members []Container
	Devices []Device
	// Unknown: the grant is unknown, so nothing of it is a violation.
	Unknown bool
	// Uncontrolled: the operator disabled the limiter.
	Uncontrolled bool
	// Native: the driver limits its memory, and it has no limiter.
	Native bool
	// Counted is the driver's count of its control group's memory, by GPU. A GPU that is missing has the sum of the processes.
	Counted map[string]uint64
	// Process: a command of the host, which has the machine's capabilities, and no container.
	Process   bool
	Dir       string
	Damage    string
	Tampering Tampering
}

func (c *Claim) member(container string) int {
	return slices.IndexFunc(c.Members, func(m Container) bool { return m.ID == container })
}

func (c *Claim) usageFile() string {
	if c.Dir == "" {
		return ""
	}
	return limiter.UsagePath(c.Dir)
}

func (c *Claim) granted(uuid string) bool {
	return slices.ContainsFunc(c.Devices, func(d Device) bool { return d.UUID == uuid })
}

// Device is a container's share of a GPU.
type Device struct {
	UUID string
	// ContextBytes is what the limiter charges for a context. 0: none, or not known.
	LimitBytes, ContextBytes uint64
	// AllowedBytes is above the limit after the limit was lowered below the use.
	AllowedBytes uint64
}

// Memory is a process's memory of a device.
type Memory struct {
	Bytes uint64
	Known bool
	// Graphics: the process has no CUDA context.
	Graphics bool
}

type Limiter int

const (
	// LimiterUnknown: it could not be read.
	LimiterUnknown Limiter = iota
	// LimiterPresent: an installed limiter is mapped as code.
	LimiterPresent
	LimiterAbsent
	// LimiterForeign: the file at the limiter's path is not installed: forged, or removed since.
	LimiterForeign
	// LimiterForged: the file at the limiter's path is not that of the container's creation.
	LimiterForged
)

// Files is which limits and usage files a process has mapped.
type Files int

const (
	// FilesUnknown: not readable, or the claim was restored while its container ran.
	FilesUnknown Files = iota
	// FilesOwn: both of the claim's.
	FilesOwn
	// FilesAbsent: not both of the claim's.
	FilesAbsent
	// FilesForeign: another file at the path of one of them.
	FilesForeign
)

type Process struct {
	orphans.Process
	Name string // set by the process; only for messages
	// Container has no ID for a process of the host.
	Container Container
	// Exempt: its namespace may use GPUs without a grant.
	Exempt bool
	// Spared is the reason not to kill it; empty: none.
	Spared  string
	Devices map[string]Memory
	// Driver: it has the driver's library or a GPU mapped.
	Driver bool
	// CUDA: it has libcuda mapped, and no driver library for OpenCL or Vulkan.
	CUDA    bool
	Limiter Limiter
	Files   Files
	Open    []DeviceNode
	// Admin: CAP_SYS_ADMIN on the machine, in a namespace that is not exempt. Privileged: all capabilities.
	Admin, Privileged bool
}

func (p *Process) computes() bool {
	for _, m := range p.Devices {
		if !m.Graphics {
			return true
		}
	}
	return false
}

func (p *Process) foreign() (what, spared string) {
	switch {
	case p.Limiter != LimiterPresent:
		return "", "" // reported as NoLimiter
	case p.Files == FilesForeign:
		return "has another file mapped instead of its container's limits or usage file", ""
	case p.Files == FilesAbsent && p.computes():
		if !p.CUDA {
			spared = "it may use OpenCL or Vulkan, and the limiter maps its files only for CUDA"
		}
		return "uses a GPU and does not have its container's limits and usage files mapped", spared
	}
	return "", ""
}

type Snapshot struct {
	Claims    map[string]*Claim
	Processes []Process
	Excesses  []feedback.Excess
}
