package nvidia

import (
	"errors"
	"fmt"
	"time"
)

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
