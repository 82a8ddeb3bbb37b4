package gpu

import (
	"errors"
	"fmt"
	"time"
)

// A MIG device is Unhealthy while its card is, and by itself when it can't be read or
// an XID of its instance comes: the driver says which one (nvmlEventData_t), for MIG
// keeps the others well. After an XID that needs a reset, its card has to have been away
// as a card's has. One that its card, which can be read, no longer has was taken away by
// somebody: it is forgotten, unless it waits for a reset.

var errNoInstance = errors.New("the card no longer has this MIG device")

// isMIG says whether a UUID is a MIG device's.
func (w *ward) isMIG(uuid string) bool {
	_, ok := w.mig[uuid]
	return ok
}

// seenMIG takes the MIG devices of a reading, after the cards.
func (w *ward) seenMIG(node Node, faults faultsByName, now time.Time) {
	for uuid, card := range faults.cardOf {
		if !w.isMIG(uuid) {
			w.mig[uuid] = MIGDevice{UUID: uuid, Card: card, GPUInstance: -1, ComputeInstance: -1}
		}
	}
	there := map[string]bool{}
	for _, c := range node.Cards {
		for _, d := range c.MIG {
			there[d.UUID] = true
			w.mig[d.UUID] = d
			w.present(d.UUID, now)
		}
	}
	for uuid, d := range w.mig {
		if there[uuid] {
			continue
		}
		a := w.cards[uuid]
		if _, readable := node.Card(d.Card); !readable {
			a.miss(faults.of(d.Card, "", errUnlisted))
			continue
		}
		err := faults.of(uuid, d.Card, errNoInstance)
		if err == errNoInstance && (a.reset == 0 || a.away) {
			delete(w.mig, uuid)
			delete(w.cards, uuid)
			continue
		}
		a.miss(err)
	}
}

// struckMIG are the MIG devices that an XID is of; none if it is of a whole card, or
// of an instance that isn't known (it is too new, or of a card without MIG, with a driver
// that leaves the ids 0): then the card is struck.
func (w *ward) struckMIG(x xid) (found []*ailment) {
	for uuid, d := range w.mig {
		if d.Card == x.uuid && x.instance.gpu == uint32(d.GPUInstance) && d.GPUInstance >= 0 &&
			(x.instance.compute == allInstances || x.instance.compute == uint32(d.ComputeInstance)) {
			found = append(found, w.cards[uuid])
		}
	}
	return found
}

// reason says what is wrong with a card or a MIG device, empty if nothing is.
func (w *ward) reason(uuid string, a *ailment) string {
	d, ok := w.mig[uuid]
	if !ok {
		return a.reason(w.settle)
	}
	if card := w.cards[d.Card]; card != nil {
		if reason := card.reason(w.settle); reason != "" {
			return fmt.Sprintf("its card %s: %s", d.Card, reason)
		}
	}
	return a.reason(w.settle)
}
