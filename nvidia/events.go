package nvidia

import (
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// eventSymbols are the NVML functions for events. go-nvml's call of a function that
// the library doesn't have ends the process, so they are looked up first.
var eventSymbols = []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlDeviceRegisterEvents"}

// events is an NVML event set that the GPUs report critical XIDs to.
type events struct {
	set   nvml.EventSet
	gpus  []GPU                  // that it was made for
	uuids map[nvml.Device]string // of the GPUs that report: one that is lost can't be asked
}

// openEvents makes an event set and registers the GPUs with it. An error says which
// GPUs report nothing: those that are not in the set; without a set, none does.
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

// register has a GPU report its critical XIDs.
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

// xid is a critical error that the driver reported.
type xid struct {
	uuid     string   // empty: of all GPUs
	instance instance // of a GPU in MIG mode
	code     uint64
}

// instance is the part of a GPU that an XID is of, by NVML's ids.
type instance struct {
	gpu, compute uint32
}

// allInstances is what NVML says in an id's place for an error that is not of one
// instance alone.
const allInstances = 0xFFFFFFFF

var wholeGPU = instance{allInstances, allInstances}

// wait waits so many milliseconds for an XID; found is false if none came.
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

// close frees the set.
func (e *events) close() error {
	return check(theDriver, "nvmlEventSetFree", e.set.Free())
}
