package metrics

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/oci"
)

// Family is a metric's name, and what is to be known of it.
type Family struct {
	Name, Help string
	// Counter says that it only rises; else it is a gauge.
	Counter bool
	// Labels are in order.
	Labels []string
}

func (f Family) kind() dto.MetricType {
	if f.Counter {
		return dto.MetricType_COUNTER
	}
	return dto.MetricType_GAUGE
}

// row is what a number is of: a GPU, a container's share of one, or the node.
type row struct {
	gpu       *view.GPU
	container *view.Container
	share     *view.Share
	place     int    // the share's among its container's
	word      string // the node's label, or a total's
	number    float64
}

// family is a metric and how it is read.
type family struct {
	Family
	value func(*row) (value float64, known bool)
}

// label is how a label is read.
type label struct {
	name  string
	value func(*reading, *row) string
}

// group are metrics that are of the same things, by the same labels.
type group struct {
	labels   []label // in the order of their names
	rows     func(*reading) []row
	families []family
}

// named gives the families the labels of their group.
func (g group) named() group {
	for i := range g.families {
		for _, l := range g.labels {
			g.families[i].Labels = append(g.families[i].Labels, l.name)
		}
	}
	return g
}

const bytesPerMiB = 1 << 20

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func gpu(name, help string, value func(*view.GPU) (float64, bool)) family {
	return family{Family{Name: "gpuslice_gpu_" + name, Help: help}, func(r *row) (float64, bool) { return value(r.gpu) }}
}

// always is of a number that is never unknown.
func always(value func(*view.GPU) float64) func(*view.GPU) (float64, bool) {
	return func(c *view.GPU) (float64, bool) { return value(c), true }
}

var gpuFamilies = []family{
	gpu("memory_total_bytes", "Memory that the GPU has, as NVML says.", always(func(c *view.GPU) float64 { return float64(c.MemoryMiB) * bytesPerMiB })),
	gpu("memory_used_bytes", "Memory of the GPU that is used by whomever, as NVML says.", func(c *view.GPU) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.MemoryUsedBytes != nil, func() float64 { return float64(*c.Telemetry.MemoryUsedBytes) })
	}),
	gpu("memory_grantable_bytes", "Memory that may be granted: the GPU's, by --device-memory-scaling; 0 of a GPU that isn't offered.", always(func(c *view.GPU) float64 { return float64(c.GrantableMiB) * bytesPerMiB })),
	gpu("memory_granted_bytes", "Memory that is granted to containers.", always(func(c *view.GPU) float64 { return float64(c.GrantedMemoryMiB) * bytesPerMiB })),
	gpu("utilization_ratio", "Part of the time in which some kernel ran, 0 to 1, as NVML says.", func(c *view.GPU) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.UtilizationPercent != nil, func() float64 { return float64(*c.Telemetry.UtilizationPercent) / 100 })
	}),
	gpu("temperature_celsius", "Temperature of the GPU.", func(c *view.GPU) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.TemperatureCelsius != nil, func() float64 { return float64(*c.Telemetry.TemperatureCelsius) })
	}),
	gpu("power_watts", "Power that the GPU draws.", func(c *view.GPU) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.PowerMilliwatts != nil, func() float64 { return float64(*c.Telemetry.PowerMilliwatts) / 1000 })
	}),
	gpu("healthy", "1 while the GPU can be given out; 0 after a critical XID, while it can't be read, or while NVML hangs.", always(func(c *view.GPU) float64 { return boolean(c.Healthy) })),
	gpu("containers", "Containers that have a share of the GPU.", always(func(c *view.GPU) float64 { return float64(c.GrantedContainers) })),
	gpu("containers_limit", "Containers that may have a share of the GPU (--device-split-count).", always(func(c *view.GPU) float64 { return float64(c.GrantableSlots) })),
	gpu("cores_granted_ratio", "Compute time that is granted to containers, 1 is the whole GPU's.", always(func(c *view.GPU) float64 { return float64(c.GrantedCores) / 100 })),
	gpu("cores_grantable_ratio", "Compute time that may be granted, 1 is the whole GPU's, by --device-cores-scaling.", always(func(c *view.GPU) float64 { return float64(c.GrantableCores) / 100 })),
}

// optional is a number that may not be known.
func optional(known bool, value func() float64) (float64, bool) {
	if !known {
		return 0, false
	}
	return value(), true
}

func share(name, help string, value func(*view.Container, *view.Share) (float64, bool)) family {
	return family{Family{Name: "gpuslice_container_" + name, Help: help}, func(r *row) (float64, bool) { return value(r.container, r.share) }}
}

// counted is of a number that only rises.
func counted(name, help string, value func(*view.Share) float64) family {
	f := share(name, help, of(value))
	f.Counter = true
	return f
}

// of is of a share's number that is never unknown.
func of(value func(*view.Share) float64) func(*view.Container, *view.Share) (float64, bool) {
	return func(_ *view.Container, s *view.Share) (float64, bool) { return value(s), true }
}

const nanosecond = 1e-9 // of a second

var shareFamilies = []family{
	share("memory_used_bytes", "Memory that the container accounts for, contexts included.", of(func(s *view.Share) float64 { return float64(s.UsedBytes) })),
	share("memory_limit_bytes", "Memory that the container may use of the GPU.", of(func(s *view.Share) float64 { return float64(s.MemoryMiB) * bytesPerMiB })),
	share("memory_residue_bytes", "Memory that the driver sees of the container beyond what it accounts for; it is taken off what it may still use.", of(func(s *view.Share) float64 { return float64(s.ResidueBytes) })),
	share("core_limit_ratio", "Compute time that the container is granted of the GPU, 0 to 1; 1 where it is not limited.", of(func(s *view.Share) float64 {
		if s.CorePercent == 0 {
			return 1
		}
		return float64(s.CorePercent) / 100
	})),
	share("core_used_ratio", "Compute time that the container had of the GPU over the last seconds, 0 to 1, as NVML says; none in MIG mode.", func(_ *view.Container, s *view.Share) (float64, bool) {
		return optional(s.CoreUsedPercent != nil, func() float64 { return *s.CoreUsedPercent / 100 })
	}),
	counted("compute_seconds_total", "Compute time of the GPU that the container was charged with, while its share was enforced.", func(s *view.Share) float64 { return float64(s.ComputeNanoseconds) * nanosecond }),
	counted("throttled_seconds_total", "Time that launches of the container have waited for its share.", func(s *view.Share) float64 { return float64(s.ThrottledNanoseconds) * nanosecond }),
	counted("launches_total", "Launches of the container, while its share was enforced.", func(s *view.Share) float64 { return float64(s.Launches) }),
	share("last_launch_timestamp_seconds", "When the container was at work on the GPU last; none before.", func(_ *view.Container, s *view.Share) (float64, bool) {
		return optional(!s.LastLaunch.IsZero(), func() float64 { return float64(s.LastLaunch.UnixMilli()) / 1000 })
	}),
	share("processes", "Processes of the container that have something on the GPU.", of(func(s *view.Share) float64 { return float64(s.Processes) })),
	counted("refused_allocations_total", "Allocations of the container that its limit has refused.", func(s *view.Share) float64 { return float64(s.RefusedAllocations) }),
	share("usage_file_damaged", "1 if the container has spoilt the file that it accounts in; none where the file is of another version.", func(c *view.Container, _ *view.Share) (float64, bool) {
		return boolean(c.UsageProblem != ""), !c.UsageUnknown
	}),
}

// enforcements are the ways that containers' limits are enforced; the empty one is of an
// entry that can't be read.
var enforcements = []oci.Enforcement{oci.EnforcePreload, oci.EnforceLibrary, oci.EnforceBoth, oci.EnforceNone}

// node is a metric of the node, by one label or none.
func node(name, help, by string, rows func(*reading) []row) group {
	g := group{rows: rows, families: []family{{Family{Name: "gpuslice_" + name, Help: help}, func(r *row) (float64, bool) { return r.number, true }}}}
	if by != "" {
		g.labels = []label{{by, func(_ *reading, r *row) string { return r.word }}}
	}
	return g.named()
}

func single(value func(*reading) float64) func(*reading) []row {
	return func(r *reading) []row { return []row{{number: value(r)}} }
}

// groups are all that is told of a node.
var groups = []group{
	node("grants", "Containers to which shares of GPUs are booked.", "", single(func(r *reading) float64 { return float64(len(r.active())) })),
	node("leaked_claims", "Shares that are booked to containers which are gone: 0, or soon again.", "", single(func(r *reading) float64 { return float64(r.leaked) })),
	node("nri_connected", "1 while the node is guarded: the agent is connected to the container runtime and knows what runs.", "", single(func(r *reading) float64 { return boolean(r.connected) })),
	node("containers", "Containers to which shares of GPUs are booked, by how their limits are enforced.", "enforcement", byEnforcement),
	group{gpuLabels, (*reading).gpus, gpuFamilies}.named(),
	group{shareLabels, (*reading).shares, shareFamilies}.named(),
}

var gpuLabels = []label{
	{"index", func(_ *reading, r *row) string { return strconv.Itoa(r.gpu.Index) }},
	{"model", func(_ *reading, r *row) string { return r.gpu.Model }},
	{"node", func(of *reading, _ *row) string { return of.node.Name }},
	{"uuid", func(_ *reading, r *row) string { return r.gpu.UUID }},
}

var shareLabels = []label{
	// Of an entry that can't be read, as people are shown it.
	{"container", func(_ *reading, r *row) string { return cmp.Or(r.container.Name, r.container.ContainerID) }},
	{"container_id", func(_ *reading, r *row) string { return r.container.ContainerID }},
	{"namespace", namespace},
	{"node", func(of *reading, _ *row) string { return of.node.Name }},
	{"pod", pod},
	{"uuid", func(_ *reading, r *row) string { return r.share.UUID }},
}

// A container of docker's has no pod, and no namespace.
func namespace(_ *reading, r *row) string {
	namespace, _, _ := strings.Cut(r.container.Pod, "/")
	return namespace
}

func pod(_ *reading, r *row) string {
	_, pod, _ := strings.Cut(r.container.Pod, "/")
	return pod
}

func (r *reading) gpus() []row {
	all := make([]row, len(r.node.GPUs))
	for i := range all {
		all[i].gpu = &r.node.GPUs[i]
	}
	return all
}

func (r *reading) shares() []row {
	all := make([]row, 0, len(r.node.Containers))
	for i := range r.node.Containers {
		c := &r.node.Containers[i]
		for j := range c.Shares {
			all = append(all, row{container: c, share: &c.Shares[j], place: j})
		}
	}
	return all
}

func byEnforcement(r *reading) (all []row) {
	for _, e := range enforcements {
		all = append(all, row{word: string(e)})
	}
	for _, c := range r.active() {
		i := slices.IndexFunc(all, func(known row) bool { return known.word == c.Enforcement })
		if i < 0 {
			i, all = len(all), append(all, row{word: c.Enforcement})
		}
		all[i].number++
	}
	return all
}

// active are the containers that count.
func (r *reading) active() []*view.Container {
	var all []*view.Container
	for i := range r.node.Containers {
		if c := &r.node.Containers[i]; c.State == string(ledger.StateActive) {
			all = append(all, c)
		}
	}
	return all
}

// Families are the metrics of a node's GPUs and containers, with the aliases that are
// asked for.
func Families(aliases ...Legacy) []Family {
	var all []Family
	for _, g := range groupsWith(aliases) {
		for _, f := range g.families {
			all = append(all, f.Family)
		}
	}
	return all
}
