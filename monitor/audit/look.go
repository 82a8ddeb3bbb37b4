package audit

import (
	"github.com/gpuslice/gpuslice/oci/claimed"
)

// Kind is what is wrong.
type Kind string

// The kinds.
const (
	// UngrantedProcess: a container's process is on a card that the container was not granted.
	UngrantedProcess Kind = "ungranted-process"
	// NoLimiter: a process of a container with a share uses the driver past the limiter.
	NoLimiter Kind = "no-limiter"
	// OverLimit: a container has more of a card's memory, by NVML, than its limit.
	OverLimit Kind = "over-limit"
	// DamagedUsageFile: a container has spoilt the file that its limiter accounts in.
	DamagedUsageFile Kind = "damaged-usage-file"
	// HostProcess: a process of no container is on a card. It is told and never ended.
	HostProcess Kind = "host-process"
)

// Kinds are all of them.
var Kinds = []Kind{UngrantedProcess, NoLimiter, OverLimit, DamagedUsageFile, HostProcess}

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
	// Devices are the cards and MIG devices that it was granted.
	Devices []Device
	// Unknown says that its grant is not known, so that it is judged by nothing.
	Unknown bool
	// Uncontrolled says that the operator lets it run without the limiter.
	Uncontrolled bool
	// UsageFile is where its limiter accounts.
	UsageFile string
	// Damage says what is wrong with that file; empty: nothing.
	Damage string
}

func (c *Claim) device(uuid string) (Device, bool) {
	for _, d := range c.Devices {
		if d.UUID == uuid {
			return d, true
		}
	}
	return Device{}, false
}

// Device is a container's part of a card.
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
)

// Process is one that is looked at.
type Process struct {
	claimed.Process        // its number and its start
	Name            string // its own word, for people
	// Container is whose it is; without an ID it is the host's.
	Container Container
	// Exempt says that its namespace may use cards without a grant.
	Exempt bool
	// Spared says why it is not to be ended, whatever it does; empty: it may be.
	Spared string
	// Devices are what it has open, by UUID.
	Devices map[string]Memory
	// Driver says that it has the driver's library or a card mapped.
	Driver  bool
	Limiter Limiter
}

// Look is what was found out at one moment.
type Look struct {
	// Claims are the ledger's containers by ID.
	Claims    map[string]*Claim
	Processes []Process
}
