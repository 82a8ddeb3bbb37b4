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

// DefaultSettle of a Cache.
const DefaultSettle = time.Minute

// Health is the health of a GPU or a MIG device.
type Health struct {
	Healthy bool `json:"healthy"`
	// Reason is the fault and how it ends; empty if healthy.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

type gpuState struct {
	absent  string // why it can't be read, empty if it can
	away    bool   // absent as during a reset: lost, or not listed
	xid     uint
	reset   uint
	wellAt  time.Time
	settles bool
}

// tracker computes the health of the GPUs: unhealthy when a GPU can't be read or a critical XID arrives,
// healthy after the settle time without either. After an XID that requires a reset, the settle time starts
// when the GPU or the driver was gone and returned. A restart loses this state, and a reset requires one.
type tracker struct {
	settle  time.Duration
	ignored []uint
	gpus    map[string]*gpuState
	mig     map[string]MIGDevice
	health  map[string]Health // replaced at each change, never modified
}

func newTracker(settle time.Duration, ignore []uint) *tracker {
	return &tracker{settle: settle, ignored: slices.Concat(applicationXIDs, ignore), gpus: map[string]*gpuState{}, mig: map[string]MIGDevice{}}
}

func (w *tracker) seen(node Node, now time.Time) {
	faults := sortFaults(node.Faults)
	for uuid := range faults.named {
		if w.gpus[uuid] == nil {
			w.gpus[uuid] = &gpuState{}
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

type faultsByName struct {
	named   map[string]error
	gpuOf   map[string]string
	unnamed map[string][]error // without a UUID: by GPU for MIG devices, "" for GPUs
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

// absences are the errors of a GPU during a reset.
var absences = []error{errUnlisted, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_DRIVER_NOT_LOADED}

func (a *gpuState) miss(err error) {
	a.absent, a.settles = strings.ReplaceAll(err.Error(), "\n", "; "), false
	a.away = a.away || slices.ContainsFunc(absences, func(absence error) bool { return errors.Is(err, absence) })
}

func (w *tracker) present(uuid string, now time.Time) {
	a := w.gpus[uuid]
	if a == nil {
		w.gpus[uuid] = &gpuState{}
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

// missing ignores MIG devices: an open NVML lists new ones.
func (w *tracker) missing() bool {
	for uuid, a := range w.gpus {
		if a.absent != "" && !w.isMIG(uuid) {
			return true
		}
	}
	return false
}

func (w *tracker) unreadable(err error, now time.Time) {
	for _, a := range w.gpus {
		a.miss(err)
	}
	w.settled(now)
}

func (w *tracker) critical(x xid, now time.Time) bool {
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

func (w *tracker) struck(x xid) (found []*gpuState) {
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

func (w *tracker) settled(now time.Time) {
	for _, a := range w.gpus {
		if a.settles && !now.Before(a.wellAt) {
			*a = gpuState{}
		}
	}
	health := make(map[string]Health, len(w.gpus))
	for uuid, a := range w.gpus {
		reason := w.reason(uuid, a)
		h := Health{Healthy: reason == "", Reason: reason, Since: now}
		if last, known := w.health[uuid]; known && last.Healthy == h.Healthy {
			h.Since = last.Since
		}
		health[uuid] = h
	}
	if !maps.Equal(health, w.health) {
		w.health = health
	}
}

func (a *gpuState) reason(settle time.Duration) string {
	switch {
	case a.absent != "":
		return a.absent
	case a.reset != 0:
		return fmt.Sprintf("XID %d, which needs a reset of the GPU: check dmesg, then reset it or restart the machine", a.reset)
	case a.settles && a.xid != 0:
		return fmt.Sprintf("XID %d: healthy after %v without another XID", a.xid, settle)
	case a.settles:
		return fmt.Sprintf("GPU is back: healthy after %v", settle)
	default:
		return ""
	}
}

// A MIG device is unhealthy if its GPU is, if it can't be read, or after an XID of its instance
// (nvmlEventData_t). After an XID that requires a reset, its GPU has to be gone and return.

var errNoInstance = errors.New("the GPU no longer has this MIG device")

func (w *tracker) isMIG(uuid string) bool {
	_, ok := w.mig[uuid]
	return ok
}

func (w *tracker) seenMIG(node Node, faults faultsByName, now time.Time) {
	for uuid, gpu := range faults.gpuOf {
		if !w.isMIG(uuid) {
			w.mig[uuid] = MIGDevice{UUID: uuid, GPU: gpu, GPUInstance: -1, ComputeInstance: -1}
		}
	}
	there := map[string]bool{}
	for _, c := range node.GPUs {
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
		a := w.gpus[uuid]
		if _, readable := node.GPU(d.GPU); !readable {
			a.miss(faults.of(d.GPU, "", errUnlisted))
			continue
		}
		err := faults.of(uuid, d.GPU, errNoInstance)
		if err == errNoInstance && (a.reset == 0 || a.away) {
			delete(w.mig, uuid)
			delete(w.gpus, uuid)
			continue
		}
		a.miss(err)
	}
}

// struckMIG returns the MIG devices of the XID's instance. None: a whole GPU, or an unknown
// instance (some drivers set the ids to 0 without MIG); then the GPU is unhealthy.
func (w *tracker) struckMIG(x xid) (found []*gpuState) {
	for uuid, d := range w.mig {
		if d.GPU == x.uuid && x.instance.gpu == uint32(d.GPUInstance) && d.GPUInstance >= 0 &&
			(x.instance.compute == allInstances || x.instance.compute == uint32(d.ComputeInstance)) {
			found = append(found, w.gpus[uuid])
		}
	}
	return found
}

func (w *tracker) reason(uuid string, a *gpuState) string {
	if parent := w.mig[uuid].GPU; w.gpus[parent] != nil {
		if reason := w.gpus[parent].reason(w.settle); reason != "" {
			return fmt.Sprintf("its GPU %s: %s", parent, reason)
		}
	}
	return a.reason(w.settle)
}

// Source of both lists: NVIDIA's XID catalogue
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Resolution Bucket
// (Immediate Action)".

// applicationXIDs are caused by programs, as in NVIDIA's device plugin and HAMi. For 109 the catalogue
// requires a reset; in that case the driver also reports one of resetXIDs.
var applicationXIDs = []uint{
	13,  // graphics exception
	31,  // memory page fault
	43,  // a program's channel stopped
	45,  // channel cleanup after another error
	68,  // video decoder exception
	109, // context switch timeout
}

// resetXIDs require a reset of the GPU (RESET_GPU) or a restart of the machine (RESTART_BM, RESTART_VM). All
// others end with the program and settle, including 74 and 155, which require a reset only in some cases.
var resetXIDs = []uint{
	46,  // GPU stopped processing
	48,  // double-bit ECC error (a workflow: reset, or restart)
	62,  // microcontroller of the GPU halted
	64,  // memory row could not be remapped
	79,  // fallen off the bus
	95,  // uncontained memory error
	110, // security fault
	119, // GSP does not answer
	120, // GSP error
	136, // link training failed
	140, // unrecovered ECC error
	143, // GPU could not be initialized
	151, // key rotation error
	156, // resource is retired at the next reset
	158, // fatal timeout
}
