package metrics

import (
	"slices"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpuslice/gpuslice/grant"
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

// The labels of cards and of containers.
var (
	cardLabels  = []string{"index", "model", "node", "uuid"}
	shareLabels = []string{"container", "container_id", "namespace", "node", "pod", "uuid"}
)

// cardFamily is a metric that each card has, and each MIG device.
type cardFamily struct {
	Family
	value func(*view.Card) (value float64, known bool)
}

// shareFamily is a metric that each container has of each of its cards.
type shareFamily struct {
	Family
	value func(*view.Container, *view.Share) (value float64, known bool)
}

// nodeFamily is a metric that a node has, by one label at most.
type nodeFamily struct {
	Family
	values func(*reading) []labelled
}

// labelled is a number of a node; its label's value may be empty.
type labelled struct {
	label string
	value float64
}

const bytesPerMiB = 1 << 20

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func card(name, help string, value func(*view.Card) (float64, bool)) cardFamily {
	return cardFamily{Family{Name: "gpuslice_card_" + name, Help: help, Labels: cardLabels}, value}
}

// always is of a number that is never unknown.
func always(value func(*view.Card) float64) func(*view.Card) (float64, bool) {
	return func(c *view.Card) (float64, bool) { return value(c), true }
}

var cardFamilies = []cardFamily{
	card("memory_total_bytes", "Memory that the card has, as NVML says.", always(func(c *view.Card) float64 { return float64(c.MemoryMiB) * bytesPerMiB })),
	card("memory_used_bytes", "Memory of the card that is used by whomever, as NVML says.", func(c *view.Card) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.MemoryUsedBytes != nil, func() float64 { return float64(*c.Telemetry.MemoryUsedBytes) })
	}),
	card("memory_grantable_bytes", "Memory that may be granted: the card's, by --device-memory-scaling; 0 of a card that isn't offered.", always(func(c *view.Card) float64 { return float64(c.GrantableMiB) * bytesPerMiB })),
	card("memory_granted_bytes", "Memory that is granted to containers.", always(func(c *view.Card) float64 { return float64(c.GrantedMemoryMiB) * bytesPerMiB })),
	card("utilization_ratio", "Part of the time in which some kernel ran, 0 to 1, as NVML says.", func(c *view.Card) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.UtilizationPercent != nil, func() float64 { return float64(*c.Telemetry.UtilizationPercent) / 100 })
	}),
	card("temperature_celsius", "Temperature of the card.", func(c *view.Card) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.TemperatureCelsius != nil, func() float64 { return float64(*c.Telemetry.TemperatureCelsius) })
	}),
	card("power_watts", "Power that the card draws.", func(c *view.Card) (float64, bool) {
		return optional(c.Telemetry != nil && c.Telemetry.PowerMilliwatts != nil, func() float64 { return float64(*c.Telemetry.PowerMilliwatts) / 1000 })
	}),
	card("healthy", "1 while the card can be given out; 0 after a critical XID, while it can't be read, or while NVML hangs.", always(func(c *view.Card) float64 { return boolean(c.Healthy) })),
	card("containers", "Containers that have a share of the card.", always(func(c *view.Card) float64 { return float64(c.GrantedContainers) })),
	card("containers_limit", "Containers that may have a share of the card (--device-split-count).", always(func(c *view.Card) float64 { return float64(c.GrantableSlots) })),
	card("cores_granted_ratio", "Compute time that is granted to containers, 1 is the whole card's.", always(func(c *view.Card) float64 { return float64(c.GrantedCores) / 100 })),
	card("cores_grantable_ratio", "Compute time that may be granted, 1 is the whole card's, by --device-cores-scaling.", always(func(c *view.Card) float64 { return float64(c.GrantableCores) / 100 })),
}

// optional is a number that may not be known.
func optional(known bool, value func() float64) (float64, bool) {
	if !known {
		return 0, false
	}
	return value(), true
}

func share(name, help string, value func(*view.Container, *view.Share) (float64, bool)) shareFamily {
	return shareFamily{Family{Name: "gpuslice_container_" + name, Help: help, Labels: shareLabels}, value}
}

// counted is of a number that only rises.
func counted(name, help string, value func(*view.Share) float64) shareFamily {
	f := share(name, help, of(value))
	f.Counter = true
	return f
}

// of is of a share's number that is never unknown.
func of(value func(*view.Share) float64) func(*view.Container, *view.Share) (float64, bool) {
	return func(_ *view.Container, s *view.Share) (float64, bool) { return value(s), true }
}

const nanosecond = 1e-9 // of a second

var shareFamilies = []shareFamily{
	share("memory_used_bytes", "Memory that the container accounts for, contexts included.", of(func(s *view.Share) float64 { return float64(s.UsedBytes) })),
	share("memory_limit_bytes", "Memory that the container may use of the card.", of(func(s *view.Share) float64 { return float64(s.MemoryMiB) * bytesPerMiB })),
	share("memory_residue_bytes", "Memory that the driver sees of the container beyond what it accounts for; it is taken off what it may still use.", of(func(s *view.Share) float64 { return float64(s.ResidueBytes) })),
	share("core_limit_ratio", "Compute time that the container is granted of the card, 0 to 1; 1 where it is not limited.", of(func(s *view.Share) float64 {
		if s.CorePercent == 0 {
			return 1
		}
		return float64(s.CorePercent) / 100
	})),
	share("core_used_ratio", "Compute time that the container had of the card over the last seconds, 0 to 1, as NVML says; none in MIG mode.", func(_ *view.Container, s *view.Share) (float64, bool) {
		return optional(s.CoreUsedPercent != nil, func() float64 { return *s.CoreUsedPercent / 100 })
	}),
	counted("compute_seconds_total", "Compute time of the card that the container was charged with, while its share was enforced.", func(s *view.Share) float64 { return float64(s.ComputeNanoseconds) * nanosecond }),
	counted("throttled_seconds_total", "Time that launches of the container have waited for its share.", func(s *view.Share) float64 { return float64(s.ThrottledNanoseconds) * nanosecond }),
	counted("launches_total", "Launches of the container, while its share was enforced.", func(s *view.Share) float64 { return float64(s.Launches) }),
	share("last_launch_timestamp_seconds", "When the container was at work on the card last; none before.", func(_ *view.Container, s *view.Share) (float64, bool) {
		return optional(!s.LastLaunch.IsZero(), func() float64 { return float64(s.LastLaunch.UnixMilli()) / 1000 })
	}),
	share("processes", "Processes of the container that have something on the card.", of(func(s *view.Share) float64 { return float64(s.Processes) })),
	counted("refused_allocations_total", "Allocations of the container that its limit has refused.", func(s *view.Share) float64 { return float64(s.RefusedAllocations) }),
	share("usage_file_damaged", "1 if the container has spoilt the file that it accounts in.", func(c *view.Container, _ *view.Share) (float64, bool) {
		return boolean(c.UsageProblem != ""), true
	}),
}

// enforcements are the ways that containers' limits are enforced; the empty one is of an
// entry that can't be read.
var enforcements = []oci.Enforcement{oci.EnforcePreload, oci.EnforceLibrary, oci.EnforceBoth, oci.EnforceNone}

var nodeFamilies = []nodeFamily{
	{Family{Name: "gpuslice_grants", Help: "Containers to which shares of cards are booked."}, func(r *reading) []labelled {
		return []labelled{{value: float64(len(r.active()))}}
	}},
	{Family{Name: "gpuslice_leaked_claims", Help: "Shares that are booked to containers which are gone: 0, or soon again."}, func(r *reading) []labelled {
		return []labelled{{value: float64(r.leaked)}}
	}},
	{Family{Name: "gpuslice_nri_connected", Help: "1 while the node is guarded: the agent is connected to the container runtime and knows what runs."}, func(r *reading) []labelled {
		return []labelled{{value: boolean(r.connected)}}
	}},
	{Family{Name: "gpuslice_containers", Help: "Containers to which shares of cards are booked, by how their limits are enforced.", Labels: []string{"enforcement"}}, func(r *reading) []labelled {
		var all []labelled
		for _, e := range enforcements {
			all = append(all, labelled{label: string(e)})
		}
		for _, c := range r.active() {
			i := slices.IndexFunc(all, func(l labelled) bool { return l.label == c.Enforcement })
			if i < 0 {
				i, all = len(all), append(all, labelled{label: c.Enforcement})
			}
			all[i].value++
		}
		return all
	}},
}

// active are the containers that count.
func (r *reading) active() []*view.Container {
	var all []*view.Container
	for i := range r.node.Containers {
		if c := &r.node.Containers[i]; c.State == string(grant.StateActive) {
			all = append(all, c)
		}
	}
	return all
}

// Families are the metrics of a node's cards and containers.
func Families() []Family {
	var all []Family
	for _, f := range nodeFamilies {
		all = append(all, f.Family)
	}
	for _, f := range cardFamilies {
		all = append(all, f.Family)
	}
	for _, f := range shareFamilies {
		all = append(all, f.Family)
	}
	return all
}
