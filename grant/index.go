package grant

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// State is what a folder of the ledger means.
type State string

const (
	// StateActive counts against the cards.
	StateActive State = "active"
	// StateReleased counts no more; the folder is there as long as the
	// container is.
	StateReleased State = "released"
	// StateCorrupt is a folder whose record can't be read and which may be an
	// active container's.
	StateCorrupt State = "corrupt"
)

// Entry is one folder of the ledger.
type Entry struct {
	Claim
	// State says whether it counts.
	State State
	// Problem is why the record could not be read; nil if it could.
	Problem error
}

// Usage is what is booked of one card.
type Usage struct {
	MemoryMiB   int64
	CorePercent int
	Slots       int
}

// entry is an Entry as the index keeps it.
type entry struct {
	record
	state   State
	problem error
	stamp   stamp
}

// index is the ledger's content in memory. It makes every decision and does no
// input or output. Sums are kept up to date, so that a decision costs the same
// with any number of containers.
type index struct {
	entries map[string]*entry
	cards   map[string]Usage
	pods    map[string][]*entry
	// corrupt are the entries whose shares are not known.
	corrupt map[string]*entry
}

func newIndex() *index {
	return &index{
		entries: map[string]*entry{},
		cards:   map[string]Usage{},
		pods:    map[string][]*entry{},
		corrupt: map[string]*entry{},
	}
}

// put adds an entry, in the place of one with the same id.
func (x *index) put(e *entry) {
	x.drop(e.ContainerID)
	x.entries[e.ContainerID] = e
	if e.PodUID != "" {
		x.pods[e.PodUID] = append(x.pods[e.PodUID], e)
	}
	x.count(e, 1)
}

// drop takes the entry out, if there is one.
func (x *index) drop(id string) {
	e, ok := x.entries[id]
	if !ok {
		return
	}
	x.count(e, -1)
	delete(x.entries, id)
	if e.PodUID == "" {
		return
	}
	x.pods[e.PodUID] = slices.DeleteFunc(x.pods[e.PodUID], func(other *entry) bool { return other == e })
	if len(x.pods[e.PodUID]) == 0 {
		delete(x.pods, e.PodUID)
	}
}

// release makes the entry count no more.
func (x *index) release(e *entry) {
	x.count(e, -1)
	e.state = StateReleased
}

// count adds the entry to the sums, or takes it out with sign -1.
func (x *index) count(e *entry, sign int) {
	if e.state == StateReleased {
		return
	}
	if e.state == StateCorrupt && len(e.Shares) == 0 {
		if sign > 0 {
			x.corrupt[e.ContainerID] = e
		} else {
			delete(x.corrupt, e.ContainerID)
		}
		return
	}
	for _, share := range e.Shares {
		usage := x.cards[share.UUID]
		usage.MemoryMiB += int64(sign) * share.MemoryMiB
		usage.CorePercent += sign * share.CorePercent
		usage.Slots += sign
		if usage == (Usage{}) {
			delete(x.cards, share.UUID)
		} else {
			x.cards[share.UUID] = usage
		}
	}
}

// predecessors returns the earlier attempts of the claim's container that still
// count.
func (x *index) predecessors(claim *Claim) (found []*entry) {
	for _, e := range x.pods[claim.PodUID] {
		if e.state == StateActive && e.ContainerID != claim.ContainerID && claim.isAttemptOf(&e.Claim) {
			found = append(found, e)
		}
	}
	return found
}

// superseded returns the active entries in whose place another one is.
func (x *index) superseded() (found []*entry) {
	for _, attempts := range x.pods {
		for _, old := range attempts {
			if old.state == StateActive && slices.ContainsFunc(attempts, func(e *entry) bool { return e.supersedes(&old.record) }) {
				found = append(found, old)
			}
		}
	}
	return found
}

// admit says whether the claim, which CheckCards has passed, may be booked.
func (x *index) admit(claim *Claim, cards map[string]Card) error {
	if err := x.checkReadable(); err != nil {
		return err
	}
	if err := x.checkSlot(claim); err != nil {
		return err
	}
	return x.checkCapacity(claim, cards, x.predecessors(claim))
}

// checkReadable refuses when there is an entry whose shares are not known:
// what is free isn't either.
func (x *index) checkReadable() error {
	if len(x.corrupt) == 0 {
		return nil
	}
	const most = 3
	ids := make([]string, 0, len(x.corrupt))
	for id := range x.corrupt {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	first := x.corrupt[ids[0]]
	return refuse(ErrCorrupt, "the ledger can't be trusted: %d unreadable entries, %s: %w; restart gpuslice-agent, which writes them again, or remove the folder if the container is gone",
		len(ids), strings.Join(ids[:min(len(ids), most)], ", "), first.problem)
}

// checkSlot refuses a positional grant whose slot another container of the pod
// has, or had and is not removed: an ephemeral container in a pod with one slot
// asks for its neighbour's.
func (x *index) checkSlot(claim *Claim) error {
	if claim.Slot == nil || claim.PodUID == "" {
		return nil
	}
	for _, e := range x.pods[claim.PodUID] {
		if e.Slot != nil && *e.Slot == *claim.Slot && e.Container != claim.Container {
			return refuse(ErrSlotTaken, "slot %d of the pod's grant belongs to container %q: write the grant by name into %s",
				*claim.Slot, e.Container, AnnotationGrant)
		}
	}
	return nil
}

// checkCapacity refuses what does not fit beside the other containers. Entries
// in own are the claim's earlier attempts, in whose place it is.
func (x *index) checkCapacity(claim *Claim, cards map[string]Card, own []*entry) error {
	for _, share := range claim.Shares {
		card, used := cards[share.UUID], x.cards[share.UUID]
		for _, e := range own {
			if i := indexOfCard(e.Shares, share.UUID); i >= 0 {
				used.MemoryMiB -= e.Shares[i].MemoryMiB
				used.CorePercent -= e.Shares[i].CorePercent
				used.Slots--
			}
		}
		var lack string
		switch {
		case share.MemoryMiB > card.MemoryMiB-used.MemoryMiB:
			lack = fmt.Sprintf("memory %d MiB asked, %d of %d MiB free", share.MemoryMiB, max(0, card.MemoryMiB-used.MemoryMiB), card.MemoryMiB)
		case share.CorePercent > card.CorePercent-used.CorePercent && share.CorePercent > 0:
			lack = fmt.Sprintf("cores %d %% asked, %d of %d %% free", share.CorePercent, max(0, card.CorePercent-used.CorePercent), card.CorePercent)
		case used.Slots >= card.Slots:
			lack = fmt.Sprintf("no slot free, %d of %d taken", used.Slots, card.Slots)
		default:
			continue
		}
		return refuse(ErrOverbooked, "card %s: %s; containers that hold it: %d (gpuslice status on the node lists them); wait until one of them ends, or ask for less",
			share.UUID, lack, used.Slots)
	}
	return nil
}
