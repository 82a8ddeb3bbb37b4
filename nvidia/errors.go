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
	if hint := advice(e.Return); hint != "" {
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

// advice is based on NVML's reference (nvmlReturn_t).
func advice(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "libnvidia-ml.so.1 was not found: install NVIDIA's driver, or mount its libraries into this container " +
			"and point LD_LIBRARY_PATH at them; do not run this on a node without GPUs"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "load the kernel module (modprobe nvidia) and check dmesg if it fails"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the library and the kernel module are of different versions: the driver was updated while in use; " +
			"load the new module or reboot, then restart this program"
	case nvml.ERROR_NO_PERMISSION:
		return "run as root with /dev/nvidiactl and the GPUs' device nodes"
	case nvml.ERROR_GPU_IS_LOST:
		return "the GPU fell off the bus or is inaccessible: look for its XID in dmesg; it needs a reset or a reboot"
	case nvml.ERROR_RESET_REQUIRED:
		return "reset the GPU (nvidia-smi --gpu-reset) once nothing runs on it"
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return "this driver is too old: update it"
	case nvml.ERROR_INSUFFICIENT_POWER:
		return "check the GPU's power cables"
	case nvml.ERROR_IRQ_ISSUE:
		return "the kernel has an interrupt problem with the GPU: check dmesg"
	case nvml.ERROR_CORRUPTED_INFOROM:
		return "the GPU's infoROM is corrupted: contact the vendor of the GPU"
	default:
		return ""
	}
}
