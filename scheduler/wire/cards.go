package wire

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/scheduler"
)

// cardsVersion is the only version of gpuslice.io/node-cards there is.
const cardsVersion = 1

// nodeCards is gpuslice.io/node-cards. Package deviceplugin/noderegister writes it. Fields
// that are not known are passed over, so that a node may be newer than the scheduler; what
// changes the meaning of one gets another version.
type nodeCards struct {
	Version int        `json:"version"`
	Cards   []nodeCard `json:"cards"`
	// Links has a row and a column for each of Cards, symmetric; absent: not known.
	Links [][]int `json:"links"`
}

// nodeCard has pointers to what must not be left out.
type nodeCard struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	Index     int    `json:"index"`
	NUMA      *int   `json:"numa"` // absent: not known
	MemoryMiB *int64 `json:"memoryMiB"`
	Cores     *int   `json:"cores"`
	Slots     *int   `json:"slots"`
	Mode      string `json:"mode"`
	Healthy   *bool  `json:"healthy"`
}

// decodeCards reads gpuslice.io/node-cards.
func decodeCards(value string) (scheduler.Inventory, error) {
	if len(value) > MaxAnnotationBytes {
		return scheduler.Inventory{}, fmt.Errorf("%d bytes: at most %d are read", len(value), MaxAnnotationBytes)
	}
	var told nodeCards
	if err := json.Unmarshal([]byte(value), &told); err != nil {
		return scheduler.Inventory{}, notJSON(err)
	}
	if told.Version != cardsVersion {
		return scheduler.Inventory{}, fmt.Errorf("version %d: this scheduler reads version %d", told.Version, cardsVersion)
	}
	cards := make([]scheduler.Card, len(told.Cards))
	for i, t := range told.Cards {
		if t.MemoryMiB == nil || t.Cores == nil || t.Slots == nil || t.Healthy == nil {
			return scheduler.Inventory{}, fmt.Errorf("card %d: memoryMiB, cores, slots and healthy must be there", i)
		}
		cards[i] = scheduler.Card{
			UUID: t.UUID, Model: t.Model, Index: t.Index, NUMA: scheduler.NUMAUnknown,
			MemoryMiB: *t.MemoryMiB, Cores: *t.Cores, Slots: *t.Slots, Mode: t.Mode, Healthy: *t.Healthy,
		}
		if t.NUMA != nil {
			cards[i].NUMA = *t.NUMA
		}
	}
	if err := checkLinks(told.Links, len(cards)); err != nil {
		return scheduler.Inventory{}, err
	}
	sorted, err := ordered(slices.Clone(cards))
	if err != nil {
		return scheduler.Inventory{}, err
	}
	return scheduler.Inventory{Cards: sorted, Links: rearranged(told.Links, cards, sorted)}, nil
}

// checkLinks says whether links are a symmetric table of so many cards, or not there.
func checkLinks(links [][]int, cards int) error {
	if links == nil {
		return nil
	}
	if len(links) != cards {
		return fmt.Errorf("links: %d rows for %d cards", len(links), cards)
	}
	for i, row := range links {
		if len(row) != cards {
			return fmt.Errorf("links: row %d has %d columns for %d cards", i, len(row), cards)
		}
	}
	for i, row := range links {
		for j, link := range row {
			if link < 0 || link > maxLink || link != links[j][i] || i == j && link != 0 {
				return fmt.Errorf("links: %d from card %d to card %d: must be from 0 to %d, the same back, and 0 of a card with itself", link, i, j, maxLink)
			}
		}
	}
	return nil
}

// rearranged are links in the order of the sorted cards.
func rearranged(links [][]int, cards, sorted []scheduler.Card) [][]int {
	if links == nil {
		return nil
	}
	was := make([]int, len(sorted))
	for i := range sorted {
		was[i] = slices.IndexFunc(cards, func(c scheduler.Card) bool { return c.UUID == sorted[i].UUID })
	}
	out := table(len(sorted))
	for i := range out {
		for j := range out[i] {
			out[i][j] = links[was[i]][was[j]]
		}
	}
	return out
}

// table is a square of so many.
func table(n int) [][]int {
	rows, space := make([][]int, n), make([]int, n*n)
	for i := range rows {
		rows[i] = space[i*n : (i+1)*n : (i+1)*n]
	}
	return rows
}
