package nvidia

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// DefaultSettle is how long a GPU has to be well before it is Healthy again.
const DefaultSettle = time.Minute

// Health is whether a GPU can be given out.
type Health struct {
	// Healthy is false from the moment that something is known to be wrong.
	Healthy bool `json:"healthy"`
	// Reason says what is wrong, and what it takes to be well; empty if healthy.
	Reason string `json:"reason,omitempty"`
	// Since is when it became so.
	Since time.Time `json:"since"`
}

// ailment is what is known of one GPU.
type ailment struct {
	absent  string    // why it can't be read, empty if it can
	away    bool      // absent as a GPU is that is being reset: lost, or no longer listed
	xid     uint64    // the newest critical XID, 0 if none
	reset   uint64    // an XID that it needs a reset for, 0 if none
	wellAt  time.Time // when it settled or will
	settles bool      // wellAt counts
}

// ward decides the health of the GPUs from what is reported. It has no clock and
// no goroutine: its owner has.
//
// A GPU is Unhealthy at once when it can't be read (NVML calls it lost, its
// reading fails, it is no longer listed, or nothing can be read at all) and when a
// critical XID comes. It is Healthy again when it has been readable and without a
// critical XID for the settle time. After an XID that needs a reset this counts only
// from when the GPU was lost or no longer listed, or the driver not loaded, and came
// back: that is what a reset looks like. MIG devices: see mighealth.go. All of this is
// forgotten when the program
// restarts, as it has to where a reset needs it out of the way (nvidia-smi refuses to
// reset a GPU that a program has open).
type ward struct {
	settle  time.Duration
	ignored []uint64
	gpus    map[string]*ailment  // and MIG devices
	mig     map[string]MIGDevice // those that are MIG devices, as they were last
	health  map[string]Health    // never changed, only replaced
}

func newWard(settle time.Duration, ignore []uint64) *ward {
	return &ward{settle: settle, ignored: slices.Concat(applicationXIDs, ignore), gpus: map[string]*ailment{}, mig: map[string]MIGDevice{}}
}

// seen takes a reading of the node.
func (w *ward) seen(node Node, now time.Time) {
	faults := sortFaults(node.Faults)
	for uuid := range faults.named {
		if w.gpus[uuid] == nil {
			w.gpus[uuid] = &ailment{}
		}
	}
	for _, c := range node.GPUs {
		w.present(c.UUID, now)
	}
	for uuid, a := range w.gpus {
		if _, ok := node.GPU(uuid); !ok && !w.isMIG(uuid) && faults.gpuOf[uuid] == "" {
			a.miss(faults.of(uuid, "", errUnlisted))
		}
	}
	w.seenMIG(node, faults, now)
	w.settled(now)
}

// faultsByName are a reading's faults.
type faultsByName struct {
	named   map[string]error   // by the UUID of the GPU or MIG device
	gpuOf   map[string]string  // the GPU of a named MIG device
	unnamed map[string][]error // whose UUID can't be read: by GPU for a MIG device's, "" for a GPU's
}

func sortFaults(faults []Fault) faultsByName {
	f := faultsByName{map[string]error{}, map[string]string{}, map[string][]error{}}
	for _, fault := range faults {
		if fault.UUID == "" {
			f.unnamed[fault.GPU] = append(f.unnamed[fault.GPU], fault)
			continue
		}
		f.named[fault.UUID] = fault
		if fault.GPU != "" {
			f.gpuOf[fault.UUID] = fault.GPU
		}
	}
	return f
}

// of is the error of what is not among those that could be read: its own, or that it
// is missing, with the faults that may be its.
func (f faultsByName) of(uuid, gpu string, missing error) error {
	if err := f.named[uuid]; err != nil {
		return err
	}
	if unnamed := f.unnamed[gpu]; len(unnamed) > 0 {
		return fmt.Errorf("%v, but has some that can't be read: %w", missing, errors.Join(unnamed...))
	}
	return missing
}

var errUnlisted = errors.New("the driver no longer lists the GPU")

// absences are the errors of a GPU that is being reset, or was.
var absences = []error{errUnlisted, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_DRIVER_NOT_LOADED}

// miss takes note that a GPU can't be read.
func (a *ailment) miss(err error) {
	a.absent, a.settles = strings.ReplaceAll(err.Error(), "\n", "; "), false
	a.away = a.away || slices.ContainsFunc(absences, func(absence error) bool { return errors.Is(err, absence) })
}

// present takes note of a GPU that can be read.
func (w *ward) present(uuid string, now time.Time) {
	a := w.gpus[uuid]
	if a == nil {
		w.gpus[uuid] = &ailment{}
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

// missing says whether a GPU can't be read. MIG devices don't count: a driver that is
// open lists those that come and go.
func (w *ward) missing() bool {
	for uuid, a := range w.gpus {
		if a.absent != "" && !w.isMIG(uuid) {
			return true
		}
	}
	return false
}

// unreadable takes note that nothing of the node could be read.
func (w *ward) unreadable(err error, now time.Time) {
	for _, a := range w.gpus {
		a.miss(err)
	}
	w.settled(now)
}

// critical takes an XID: of a GPU, of all GPUs, or of an instance, whose MIG devices
// alone are ill then. It says whether it counts.
func (w *ward) critical(x xid, now time.Time) bool {
	if slices.Contains(w.ignored, x.code) {
		return false
	}
	for _, a := range w.struck(x) {
		a.xid = x.code
		if slices.Contains(resetXIDs, x.code) {
			a.reset = x.code
		}
		a.wellAt, a.settles = now.Add(w.settle), a.absent == "" && a.reset == 0
	}
	w.settled(now)
	return true
}

// struck are those that an XID makes ill by themselves.
func (w *ward) struck(x xid) (found []*ailment) {
	if found = w.struckMIG(x); len(found) > 0 {
		return found
	}
	for uuid, a := range w.gpus {
		if !w.isMIG(uuid) && (x.uuid == "" || x.uuid == uuid) {
			found = append(found, a)
		}
	}
	return found
}

// settled works the health out again.
func (w *ward) settled(now time.Time) {
	for _, a := range w.gpus {
		if a.settles && !now.Before(a.wellAt) {
			*a = ailment{}
		}
	}
	health := make(map[string]Health, len(w.gpus))
	for uuid, a := range w.gpus {
		h := Health{Reason: w.reason(uuid, a)}
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
		return fmt.Sprintf("XID %d, which needs a reset of the GPU: look into dmesg, then reset it or restart the machine", a.reset)
	case a.settles && a.xid != 0:
		return fmt.Sprintf("XID %d: well again after %v without another", a.xid, settle)
	case a.settles:
		return fmt.Sprintf("it was away and is back: well again after %v", settle)
	default:
		return ""
	}
}
