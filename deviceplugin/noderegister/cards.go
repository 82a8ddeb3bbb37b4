package noderegister

import "github.com/gpuslice/gpuslice/gpu"

// AnnotationCards has the devices of a node in our form, for our scheduler: package
// scheduler/wire reads it, and has its manual.
const AnnotationCards = "gpuslice.io/node-cards"

// cardsVersion is raised when the meaning of a field changes; one more field is no new
// version.
const cardsVersion = 1

// nodeCards is the annotation.
type nodeCards struct {
	Version int    `json:"version"`
	Cards   []card `json:"cards"`
	// Links has a row and a column for each card; nil: not known.
	Links [][]int `json:"links,omitempty"`
}

// card is a device. Nothing is left out that can be 0.
type card struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	Index     int    `json:"index"`
	NUMA      *int   `json:"numa,omitempty"` // nil: not known
	MemoryMiB int64  `json:"memoryMiB"`
	Cores     int    `json:"cores"`
	Slots     int    `json:"slots"`
	Mode      string `json:"mode"`
	Healthy   bool   `json:"healthy"`
}

// cards are the devices and how they are connected. The model is HAMi's word for it, so
// that a pod which chooses by it gets the same from either annotation.
func cards(devices []Device, t gpu.Topology) string {
	told := nodeCards{Version: cardsVersion, Cards: make([]card, len(devices))}
	for i, d := range devices {
		told.Cards[i] = card{
			UUID: d.Card.UUID, Model: registeredType(d.Card.Model), Index: max(d.Card.Index, 0),
			MemoryMiB: max(d.MemoryMiB, 0), Cores: max(d.CorePercent, 0), Slots: max(d.Slots, 0), Mode: d.mode(), Healthy: d.Healthy,
		}
		if numa := d.Card.NUMANode; numa != gpu.NUMAUnknown {
			told.Cards[i].NUMA = &numa
		}
	}
	if len(t.UUIDs) > 0 {
		told.Links = links(devices, t)
	}
	return mustJSON(told)
}

// links are each device's with each; 0 with itself, and where nobody knows.
func links(devices []Device, t gpu.Topology) [][]int {
	rows := make([][]int, len(devices))
	for i, a := range devices {
		rows[i] = make([]int, len(devices))
		for j, b := range devices {
			rows[i][j] = t.Link(a.Card.UUID, b.Card.UUID)
		}
	}
	return rows
}
