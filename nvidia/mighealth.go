package nvidia

import (
	"errors"
	"fmt"
	"time"
)

// A MIG device is Unhealthy while its GPU is, and by itself when it can't be read or
// an XID of its instance comes: the driver says which one (nvmlEventData_t), for MIG
// keeps the others well. After an XID that needs a reset, its GPU has to have been away
// as a GPU's has. One that its GPU, which can be read, no longer has was taken away by
// somebody: it is forgotten, unless it waits for a reset.

var errNoInstance = errors.New("the GPU no longer has this MIG device")

// isMIG says whether a UUID is a MIG device's.
func (w *ward) isMIG(uuid string) bool {
	_, ok := w.mig[uuid]
	return ok
}

// seenMIG takes the MIG devices of a reading, after the GPUs.
func (w *ward) seenMIG(node Node, faults faultsByName, now time.Time) {
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

// struckMIG are the MIG devices that an XID is of; none if it is of a whole GPU, or
// of an instance that isn't known (it is too new, or of a GPU without MIG, with a driver
// that leaves the ids 0): then the GPU is struck.
func (w *ward) struckMIG(x xid) (found []*ailment) {
	for uuid, d := range w.mig {
		if d.GPU == x.uuid && x.instance.gpu == uint32(d.GPUInstance) && d.GPUInstance >= 0 &&
			(x.instance.compute == allInstances || x.instance.compute == uint32(d.ComputeInstance)) {
			found = append(found, w.gpus[uuid])
		}
	}
	return found
}

// reason says what is wrong with a GPU or a MIG device, empty if nothing is.
func (w *ward) reason(uuid string, a *ailment) string {
	d, ok := w.mig[uuid]
	if !ok {
		return a.reason(w.settle)
	}
	if gpu := w.gpus[d.GPU]; gpu != nil {
		if reason := gpu.reason(w.settle); reason != "" {
			return fmt.Sprintf("its GPU %s: %s", d.GPU, reason)
		}
	}
	return a.reason(w.settle)
}
