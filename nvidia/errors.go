package nvidia

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Error is a failed NVML call. It unwraps to the nvml.Return.
type Error struct {
	What   string
	Call   string
	Return nvml.Return
}

// Error includes advice where there is one.
func (e *Error) Error() string {
	msg := fmt.Sprintf("%s: %s: %v", e.What, e.Call, e.Return)
	if hint := advice[e.Return]; hint != "" {
		msg += ": " + hint
	}
	return msg
}

func (e *Error) Unwrap() error { return e.Return }

func check(what, call string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &Error{What: what, Call: call, Return: ret}
}

// ask calls NVML if no earlier call has failed.
func ask[T any](failed *error, what, call string, query func() (T, nvml.Return)) (value T) {
	if *failed != nil {
		return value
	}
	answer, ret := query()
	if *failed = check(what, call, ret); *failed == nil {
		value = answer
	}
	return value
}

// askOptional is ask for a call that the driver or the device may not support.
func askOptional[T any](failed *error, what, call string, query func() (T, nvml.Return)) (value T, known bool) {
	if *failed != nil {
		return value, false
	}
	answer, ret := query()
	if *failed = optional(what, call, ret); ret == nvml.SUCCESS {
		return answer, true
	}
	return value, false
}

// advice is based on NVML's reference (nvmlReturn_t).
var advice = map[nvml.Return]string{
	nvml.ERROR_LIBRARY_NOT_FOUND: "the driver's management library (libnvidia-ml.so.1, unless --nvml-library or nvmlLibrary names another file) was not found: " +
		"install NVIDIA's driver, or mount its libraries into this container and point LD_LIBRARY_PATH at them; do not run this on a node without GPUs",
	nvml.ERROR_DRIVER_NOT_LOADED: "load the kernel module (modprobe nvidia) and check dmesg if it fails",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "the library and the kernel module are of different versions: the driver was updated while in use; " +
		"load the new module or reboot, then restart this program",
	nvml.ERROR_NO_PERMISSION:      "run as root with /dev/nvidiactl and the GPUs' device nodes",
	nvml.ERROR_GPU_IS_LOST:        "the GPU fell off the bus or is inaccessible: look for its XID in dmesg; it needs a reset or a reboot",
	nvml.ERROR_RESET_REQUIRED:     "reset the GPU (nvidia-smi --gpu-reset) once nothing runs on it",
	nvml.ERROR_FUNCTION_NOT_FOUND: "this driver is too old: update it",
	nvml.ERROR_INSUFFICIENT_POWER: "check the GPU's power cables",
	nvml.ERROR_IRQ_ISSUE:          "the kernel has an interrupt problem with the GPU: check dmesg",
	nvml.ERROR_CORRUPTED_INFOROM:  "the GPU's infoROM is corrupted: contact the vendor of the GPU",
}
