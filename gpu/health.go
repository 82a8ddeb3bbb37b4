package gpu

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// DefaultSettle is how long a card has to be well before it is Healthy again.
const DefaultSettle = time.Minute

// Health is whether a card can be given out.
type Health struct {
	// Healthy is false from the moment that something is known to be wrong.
	Healthy bool `json:"healthy"`
	// Reason says what is wrong, and what it takes to be well; empty if healthy.
	Reason string `json:"reason,omitempty"`
	// Since is when it became so.
	Since time.Time `json:"since"`
}

// applicationXIDs are what programs do to themselves: the card is well. The list is
// that of NVIDIA's device plugin, which HAMi took over; the meanings are those of
// NVIDIA's XID reference (docs.nvidia.com/deploy/xid-errors).
var applicationXIDs = []uint64{
	13,  // graphics engine exception
	31,  // memory page fault
	43,  // a program's channel stopped
	45,  // preemptive cleanup of channels, after another error
	68,  // video processor exception
	109, // context switch timeout
}

// resetXIDs leave a card unusable until it is reset or the machine is restarted, as
// we read NVIDIA's XID reference (see [applicationXIDs]): its actions for these are a
// reset of the card or a restart. All other XIDs pass by themselves once the
// program is gone: they settle.
var resetXIDs = []uint64{
	48,  // double-bit ECC error
	62,  // the card's own microcontroller halted
	64,  // a memory row could not be remapped
	79,  // fallen off the bus
	95,  // uncontained memory error
	110, // security fault
	119, // GSP does not answer
	120, // GSP error
	140, // unrecovered ECC error
}

// ailment is what is known of one card.
type ailment struct {
	absent  string    // why it can't be read, empty if it can
	away    bool      // absent as a card is that is being reset: lost, or no longer listed
	xid     uint64    // the newest critical XID, 0 if none
	reset   uint64    // an XID that it needs a reset for, 0 if none
	wellAt  time.Time // when it settled or will
	settles bool      // wellAt counts
}

// ward decides the health of the cards from what is reported. It has no clock and
// no goroutine: its owner has.
//
// A card is Unhealthy at once when it can't be read (NVML calls it lost, its
// reading fails, it is no longer listed, or nothing can be read at all) and when a
// critical XID comes. It is Healthy again when it has been readable and without a
// critical XID for the settle time. After an XID that needs a reset this counts only
// from when the card was lost or no longer listed, or the driver not loaded, and came
// back: that is what a reset looks like. All of this is forgotten when the program
// restarts, as it has to where a reset needs it out of the way (nvidia-smi refuses to
// reset a card that a program has open).
type ward struct {
	settle  time.Duration
	ignored []uint64
	cards   map[string]*ailment
	health  map[string]Health // never changed, only replaced
}

func newWard(settle time.Duration, ignore []uint64) *ward {
	return &ward{settle: settle, ignored: slices.Concat(applicationXIDs, ignore), cards: map[string]*ailment{}}
}

// seen takes a reading of the node.
func (w *ward) seen(node Node, now time.Time) {
	var unnamed []error // faults whose UUID can't be read: one may be a card that is missing
	named := map[string]error{}
	for _, f := range node.Faults {
		if f.UUID == "" {
			unnamed = append(unnamed, f)
			continue
		}
		named[f.UUID] = f
		if w.cards[f.UUID] == nil {
			w.cards[f.UUID] = &ailment{}
		}
	}
	for _, c := range node.Cards {
		w.present(c.UUID, now)
	}
	for uuid, a := range w.cards {
		if _, ok := node.Card(uuid); ok {
			continue
		}
		err := named[uuid]
		if err == nil {
			err = unlisted(unnamed)
		}
		a.miss(err)
	}
	w.settled(now)
}

var errUnlisted = errors.New("the driver no longer lists the card")

// unlisted is the error of a card that is gone, given the faults that may be its.
func unlisted(unnamed []error) error {
	if len(unnamed) == 0 {
		return errUnlisted
	}
	return fmt.Errorf("%v, but has cards that can't be read: %w", errUnlisted, errors.Join(unnamed...))
}

// absences are the errors of a card that is being reset, or was.
var absences = []error{errUnlisted, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_DRIVER_NOT_LOADED}

// miss takes note that a card can't be read.
func (a *ailment) miss(err error) {
	a.absent, a.settles = strings.ReplaceAll(err.Error(), "\n", "; "), false
	a.away = a.away || slices.ContainsFunc(absences, func(absence error) bool { return errors.Is(err, absence) })
}

// present takes note of a card that can be read.
func (w *ward) present(uuid string, now time.Time) {
	a := w.cards[uuid]
	if a == nil {
		w.cards[uuid] = &ailment{}
		return
	}
	if a.absent == "" {
		return
	}
	if a.away {
		a.reset = 0
	}
	a.absent, a.away = "", false
	a.wellAt, a.settles = now.Add(w.settle), a.reset == 0
}

// missing says whether a card can't be read.
func (w *ward) missing() bool {
	for _, a := range w.cards {
		if a.absent != "" {
			return true
		}
	}
	return false
}

// unreadable takes note that nothing of the node could be read.
func (w *ward) unreadable(err error, now time.Time) {
	for _, a := range w.cards {
		a.miss(err)
	}
	w.settled(now)
}

// critical takes an XID of a card, of all cards if the UUID is empty. It says
// whether it counts.
func (w *ward) critical(uuid string, xid uint64, now time.Time) bool {
	if slices.Contains(w.ignored, xid) {
		return false
	}
	for id, a := range w.cards {
		if uuid != "" && uuid != id {
			continue
		}
		a.xid = xid
		if slices.Contains(resetXIDs, xid) {
			a.reset = xid
		}
		a.wellAt, a.settles = now.Add(w.settle), a.absent == "" && a.reset == 0
	}
	w.settled(now)
	return true
}

// settled works the health out anew.
func (w *ward) settled(now time.Time) {
	health := make(map[string]Health, len(w.cards))
	for uuid, a := range w.cards {
		if a.settles && !now.Before(a.wellAt) {
			*a = ailment{}
		}
		h := Health{Reason: a.reason(w.settle)}
		h.Healthy = h.Reason == ""
		h.Since = now
		if last, known := w.health[uuid]; known && last.Healthy == h.Healthy {
			h.Since = last.Since
		}
		health[uuid] = h
	}
	if !maps.Equal(health, w.health) {
		w.health = health
	}
}

// reason says what is wrong, empty if nothing is.
func (a *ailment) reason(settle time.Duration) string {
	switch {
	case a.absent != "":
		return a.absent
	case a.reset != 0:
		return fmt.Sprintf("XID %d, which needs a reset of the card: look into dmesg, then reset it or restart the machine", a.reset)
	case a.settles && a.xid != 0:
		return fmt.Sprintf("XID %d: well again after %v without another", a.xid, settle)
	case a.settles:
		return fmt.Sprintf("it was away and is back: well again after %v", settle)
	default:
		return ""
	}
}
