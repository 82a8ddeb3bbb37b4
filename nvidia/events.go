package nvidia

import (
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// eventSymbols are looked up first: go-nvml ends the process when it calls a function that the
// library lacks.
var eventSymbols = []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlDeviceRegisterEvents"}

type events struct {
	set   nvml.EventSet
	gpus  []GPU                  // registered GPUs
	uuids map[nvml.Device]string // by handle: a lost GPU can't be queried
}

// openEvents registers the GPUs with an event set. The error names the GPUs that are not in the
// set; without a set, none is.
func (r reader) openEvents(gpus []GPU) (*events, error) {
	for _, symbol := range eventSymbols {
		if !r.has(symbol) {
			return nil, check(theDriver, symbol, nvml.ERROR_FUNCTION_NOT_FOUND)
		}
	}
	set, ret := r.lib.EventSetCreate()
	if err := check(theDriver, "nvmlEventSetCreate", ret); err != nil {
		return nil, err
	}
	e := &events{set: set, gpus: gpus, uuids: map[nvml.Device]string{}}
	var failed error
	for _, gpu := range gpus {
		failed = errors.Join(failed, e.register(r.lib, gpu))
	}
	if len(e.uuids) == 0 {
		return nil, errors.Join(failed, e.close())
	}
	return e, failed
}

func (e *events) register(lib nvml.Interface, gpu GPU) error {
	what := gpu.label()
	dev, ret := lib.DeviceGetHandleByIndex(gpu.Index)
	if err := check(what, "nvmlDeviceGetHandleByIndex", ret); err != nil {
		return err
	}
	if err := check(what, "nvmlDeviceRegisterEvents", dev.RegisterEvents(nvml.EventTypeXidCriticalError, e.set)); err != nil {
		return err
	}
	e.uuids[dev] = gpu.UUID
	return nil
}

type xid struct {
	uuid     string
	instance instance
	code     uint64
}

// instance is the part of a GPU that an XID is about, by NVML's ids.
type instance struct {
	gpu, compute uint32
}

// allInstances is NVML's id for an error that is not limited to one instance.
const allInstances = 0xFFFFFFFF

func (e *events) wait(milliseconds uint32) (x xid, found bool, err error) {
	data, ret := e.set.Wait(milliseconds)
	if ret == nvml.ERROR_TIMEOUT {
		return xid{}, false, nil
	}
	if err := check(theDriver, "nvmlEventSetWait", ret); err != nil {
		return xid{}, false, err
	}
	if data.EventType != nvml.EventTypeXidCriticalError {
		return xid{}, false, nil
	}
	return xid{
		uuid:     e.uuids[data.Device],
		instance: instance{data.GpuInstanceId, data.ComputeInstanceId},
		code:     data.EventData,
	}, true, nil
}

func (e *events) close() error {
	return check(theDriver, "nvmlEventSetFree", e.set.Free())
}
