package noderegister

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/nvidia"
)

// The annotations, by HAMi's names.
const (
	// AnnotationRegister has the devices of a node.
	AnnotationRegister = "hami.io/node-nvidia-register"
	// AnnotationScore has how well they are connected.
	AnnotationScore = "hami.io/node-nvidia-score"
	// AnnotationHandshake is where schedulers ask whether the node's agent lives.
	AnnotationHandshake = "hami.io/node-handshake"
)

// Render is what a node should say. It depends on nothing else, and not on the order of
// the devices.
func Render(n Node, o Options) Metadata {
	n.Devices = slices.SortedFunc(slices.Values(n.Devices), func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.GPU.Index, b.GPU.Index), cmp.Compare(a.GPU.UUID, b.GPU.UUID))
	})
	m := Metadata{Labels: labels(n, o), Annotations: map[string]string{}}
	n.Devices = slices.DeleteFunc(n.Devices, Device.partitioned)
	if !o.NoGPUs && len(n.Devices) > 0 {
		m.Annotations[AnnotationGPUs] = gpus(n.Devices, n.Topology)
	}
	// HAMi has no word for a node without devices: an empty list is an error to it, and
	// an absent one the same error.
	if o.Register == FormatNone || len(n.Devices) == 0 {
		return m
	}
	if o.Register == FormatCSV {
		m.Annotations[AnnotationRegister] = registerCSV(n.Devices)
	} else {
		m.Annotations[AnnotationRegister] = registerJSON(n.Devices)
	}
	if !o.NoScores {
		m.Annotations[AnnotationScore] = scores(n.Devices, n.Topology)
	}
	return m
}

// partitioned says whether a device is none for a scheduler: its GPU was partitioned by
// its operator, and the kubelet counts the parts.
func (d Device) partitioned() bool { return d.mode() == ModeMIG && len(d.MIGProfiles) == 0 }

// registered is a device as HAMi's JSON has it. Zero values are left out, as HAMi does:
// a device without "health" is not healthy.
type registered struct {
	ID       string       `json:"id,omitempty"`
	Index    int          `json:"index,omitempty"`
	Count    int32        `json:"count,omitempty"`
	Memory   int32        `json:"devmem,omitempty"`
	Core     int32        `json:"devcore,omitempty"`
	Type     string       `json:"type,omitempty"`
	NUMA     int          `json:"numa,omitempty"`
	Mode     string       `json:"mode,omitempty"`
	Profiles []MIGProfile `json:"migProfiles,omitempty"`
	Health   bool         `json:"health,omitempty"`
}

func register(d Device) registered {
	return registered{
		ID:       d.GPU.UUID,
		Index:    max(d.GPU.Index, 0),
		Count:    number(int64(d.Slots)),
		Memory:   number(d.MemoryMiB),
		Core:     number(int64(d.CorePercent)),
		Type:     registeredType(d.GPU.Model),
		NUMA:     max(d.GPU.NUMANode, 0), // HAMi has no word for unknown either
		Mode:     d.mode(),
		Profiles: d.MIGProfiles,
		Health:   d.Healthy,
	}
}

// number fits a number into HAMi's: one that doesn't fit would make the whole
// annotation unreadable.
func number(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// registeredType is a GPU's model with "NVIDIA" before it, as nvidia.com/use-gputype
// is matched with.
func registeredType(model string) string {
	if strings.HasPrefix(model, "NVIDIA") {
		return model
	}
	return "NVIDIA-" + model
}

func registerJSON(devices []Device) string {
	list := make([]registered, len(devices))
	for i, d := range devices {
		list[i] = register(d)
	}
	return mustJSON(list)
}

// registerCSV is the form of nine fields, which every HAMi that reads this form knows.
// It has no escapes.
func registerCSV(devices []Device) string {
	separators := strings.NewReplacer(",", "-", ":", "-")
	var b strings.Builder
	for _, d := range devices {
		r := register(d)
		fmt.Fprintf(&b, "%s,%d,%d,%d,%s,%d,%t,%d,%s:",
			separators.Replace(r.ID), r.Count, r.Memory, r.Core, separators.Replace(r.Type), r.NUMA, r.Health, r.Index, r.Mode)
	}
	return b.String()
}

// scored is a device and its links, as HAMi has it.
type scored struct {
	UUID   string         `json:"uuid"`
	Scores map[string]int `json:"score"`
}

// scores are the links among the devices; 0 where nobody knows.
func scores(devices []Device, t nvidia.Topology) string {
	list := make([]scored, len(devices))
	for i, a := range devices {
		list[i] = scored{UUID: a.GPU.UUID, Scores: map[string]int{}}
		for _, b := range devices {
			if a.GPU.UUID != b.GPU.UUID {
				list[i].Scores[b.GPU.UUID] = t.Link(a.GPU.UUID, b.GPU.UUID)
			}
		}
	}
	return mustJSON(list)
}

// mustJSON is for values that have nothing that JSON lacks.
func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}
