package audit

import (
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
)

// Kind is what is wrong.
type Kind string

// The kinds.
const (
	// UngrantedProcess: a container's process is on a GPU that the container was not granted.
	UngrantedProcess Kind = "ungranted-process"
	// NoLimiter: a process of a container with a share uses the driver past the limiter.
	NoLimiter Kind = "no-limiter"
	// OverLimit: a container has more of a GPU's memory, by NVML, than its limit.
	OverLimit Kind = "over-limit"
	// DamagedUsageFile: a container has spoilt the file that its limiter accounts in.
	DamagedUsageFile Kind = "damaged-usage-file"
	// ForeignFiles: a process of a container with a share does not have the claim's limits and usage files mapped.
	ForeignFiles Kind = "foreign-files"
	// ForeignDescriptor: a container's process has a GPU's device node open without a grant for that GPU.
	ForeignDescriptor Kind = "foreign-descriptor"
	// TamperedFiles: a process holds a lock or a lease on a file of its container's claim.
	TamperedFiles Kind = "tampered-files"
	// PrivilegedContainer: a container with a share has CAP_SYS_ADMIN. It is reported and never ended.
	PrivilegedContainer Kind = "privileged-container"
	// HostProcess: a process of no container is on a GPU. It is told and never ended.
	HostProcess Kind = "host-process"
)

// Kinds are all of them.
var Kinds = []Kind{UngrantedProcess, NoLimiter, ForeignFiles, OverLimit, DamagedUsageFile, TamperedFiles, ForeignDescriptor, PrivilegedContainer, HostProcess}

// Container is a container and its pod, as far as they are known.
type Container struct {
	ID        string `json:"id,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	Name      string `json:"container,omitempty"`
}

// String names a container in a message.
func (c Container) String() string {
	switch {
	case c.Pod != "":
		return "container " + c.Name + " of pod " + c.Namespace + "/" + c.Pod
	case c.Name != "":
		return "container " + c.Name
	}
	return "container " + c.ID
}

// Claim is a container of the ledger.
type Claim struct {
	Container
	// Devices are the granted GPUs and MIG devices: from the ledger until the limits file is
	// read.
	Devices []Device
	// Unknown says that its grant is not known, so that it is judged by nothing.
	Unknown bool
	// Uncontrolled says that the operator lets it run without the limiter.
	Uncontrolled bool
	// Dir is the directory of the claim, with the files of its limiter.
	Dir string
	// Damage says what is wrong with its usage file; empty: nothing.
	Damage string
	// Tampering are the locks and leases on its files.
	Tampering Tampering
}

// usageFile is the path of its usage file; empty: not known.
func (c *Claim) usageFile() string {
	if c.Dir == "" {
		return ""
	}
	return limiter.UsagePath(c.Dir)
}

func (c *Claim) device(uuid string) (Device, bool) {
	for _, d := range c.Devices {
		if d.UUID == uuid {
			return d, true
		}
	}
	return Device{}, false
}

func (c *Claim) granted(uuid string) bool {
	_, granted := c.device(uuid)
	return granted
}

// Device is a container's part of a GPU.
type Device struct {
	UUID string
	// LimitBytes is its memory limit, and ContextBytes what its limiter charges for a
	// context; 0: nothing, or not known.
	LimitBytes, ContextBytes uint64
	// AllowedBytes is what it may have now: the limit, or what it had when the limit was
	// lowered below that (allow).
	AllowedBytes uint64
}

// Memory is what a process has of a device's memory, if Known.
type Memory struct {
	Bytes uint64
	Known bool
	// Graphics: the process draws and has no CUDA context.
	Graphics bool
}

// Limiter says whether a process has the limiter.
type Limiter int

// What can be found out of it.
const (
	// LimiterUnknown: it could not be looked at.
	LimiterUnknown Limiter = iota
	// LimiterPresent: one of those that are installed on the node is mapped as code.
	LimiterPresent
	// LimiterAbsent: none is.
	LimiterAbsent
	// LimiterForeign: what is mapped has the limiter's path and is no file that is
	// installed: one that was removed since, or a forgery.
	LimiterForeign
	// LimiterForged: the file at the limiter's path is not the one that the container was created with.
	LimiterForged
)

// Files says which limits and usage files a process has mapped.
type Files int

const (
	// FilesUnknown: they could not be read, or the claim was restored while its container ran.
	FilesUnknown Files = iota
	// FilesOwn: both of the claim's.
	FilesOwn
	// FilesAbsent: not both of the claim's.
	FilesAbsent
	// FilesForeign: another file at the path of one of them.
	FilesForeign
)

// Process is one that is looked at.
type Process struct {
	orphans.Process        // its number and its start
	Name            string // its own word, for people
	// Container is whose it is; without an ID it is the host's.
	Container Container
	// Exempt says that its namespace may use GPUs without a grant.
	Exempt bool
	// Spared says why it is not to be ended, whatever it does; empty: it may be.
	Spared string
	// Devices are what it has open, by UUID.
	Devices map[string]Memory
	// Driver says that it has the driver's library or a GPU mapped.
	Driver bool
	// CUDA: it has libcuda mapped, and no library of the driver that computes without it.
	CUDA    bool
	Limiter Limiter
	Files   Files
	// Open are the device nodes of GPUs that it has open.
	Open []DeviceNode
	// Admin: it has CAP_SYS_ADMIN on the machine, in a namespace that is not exempt. Privileged: it has all capabilities.
	Admin, Privileged bool
}

// computes says whether it has a CUDA context.
func (p *Process) computes() bool {
	for _, m := range p.Devices {
		if !m.Graphics {
			return true
		}
	}
	return false
}

// foreign says what is wrong with its limits and usage files, and why it is spared for that; empty: nothing is wrong.
func (p *Process) foreign() (what, spared string) {
	switch {
	case p.Limiter != LimiterPresent:
		return "", "" // that is a violation of its own
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

// Look is what was found out at one moment.
type Look struct {
	// Claims are the ledger's containers by ID.
	Claims    map[string]*Claim
	Processes []Process
}
