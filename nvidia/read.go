package nvidia

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

const bytesPerMiB = 1 << 20

func (r reader) gpu(index int) (GPU, error) {
	gpu := GPU{Index: index, NUMANode: NUMAUnknown}
	what := fmt.Sprintf("GPU %d", index)

	dev, ret := r.lib.DeviceGetHandleByIndex(index)
	if err := check(what, "nvmlDeviceGetHandleByIndex", ret); err != nil {
		return gpu, err
	}
	var err error
	if gpu.UUID = ask(&err, what, "nvmlDeviceGetUUID", dev.GetUUID); err == nil && gpu.UUID == "" {
		err = fmt.Errorf("%s: nvmlDeviceGetUUID: empty UUID", what)
	}
	what = gpu.Label()
	gpu.Model = ask(&err, what, "nvmlDeviceGetName", dev.GetName)
	gpu.Minor = ask(&err, what, "nvmlDeviceGetMinorNumber", dev.GetMinorNumber)
	gpu.MemoryMiB = memoryMiB(&err, dev, what)
	if err != nil {
		return gpu, err
	}
	return gpu, r.placement(&gpu, dev, what)
}

func memoryMiB(failed *error, dev nvml.Device, what string) int64 {
	memory := ask(failed, what, memorySymbol, dev.GetMemoryInfo)
	if *failed == nil && memory.Total < bytesPerMiB {
		*failed = fmt.Errorf("%s: %s: %d bytes in total, which can't be shared", what, memorySymbol, memory.Total)
	}
	return int64(memory.Total / bytesPerMiB)
}

// placement reads optional facts: they stay unknown if the driver or GPU does not support them.
func (r reader) placement(gpu *GPU, dev nvml.Device, what string) error {
	major, minor, ret := dev.GetCudaComputeCapability()
	if err := optional(what, "nvmlDeviceGetCudaComputeCapability", ret); err != nil {
		return err
	}
	if ret == nvml.SUCCESS {
		gpu.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}

	var err error
	if pci, known := askOptional(&err, what, "nvmlDeviceGetPciInfo", dev.GetPciInfo); known {
		gpu.PCIBusID = cString(pci.BusId[:])
	}
	if err != nil {
		return err
	}
	return r.readNUMA(gpu, dev, what)
}

func optional(what, call string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil
	default:
		return check(what, call, ret)
	}
}

func cString(chars []int8) string {
	text := make([]byte, len(chars))
	for i, c := range chars {
		text[i] = byte(c)
	}
	return unix.ByteSliceToString(text)
}

const theDriver = "the driver"

// Discover opens NVML, reads the node once, and closes NVML. A GPU that can't be read is one of the
// node's faults.
func Discover(lib nvml.Interface) (Node, error) {
	r := reader{lib: lib, numa: sysfsNUMA(hostSysfs())}
	if err := r.open(); err != nil {
		return Node{}, err
	}
	node, err := r.read(context.Background())
	return node, errors.Join(err, r.close())
}

type reader struct {
	lib  nvml.Interface
	numa func(pciBusID string) (node int, known bool)
	info func(uuid string, since uint64) ([]timeSample, nvml.Return)
	// profiles: also read the MIG profiles and GPU instances.
	profiles bool
}

func (r reader) open() error {
	return check(theDriver, "nvmlInit", r.lib.Init())
}

func (r reader) close() error {
	return check(theDriver, "nvmlShutdown", r.lib.Shutdown())
}

// read checks ctx between GPUs only: a call of NVML can't be interrupted.
func (r reader) read(ctx context.Context) (Node, error) {
	var err error
	driver := ask(&err, theDriver, "nvmlSystemGetDriverVersion", r.lib.SystemGetDriverVersion)
	cuda := ask(&err, theDriver, "nvmlSystemGetCudaDriverVersion", r.lib.SystemGetCudaDriverVersion)
	count := ask(&err, theDriver, "nvmlDeviceGetCount", r.lib.DeviceGetCount)
	if err != nil {
		return Node{}, err
	}
	node := Node{DriverVersion: driver, CUDAVersion: cudaVersion(cuda), GPUs: make([]GPU, 0, count)}
	for i := range count {
		if err := ctx.Err(); err != nil {
			return Node{}, fmt.Errorf("read GPU %d of %d: %w", i, count, err)
		}
		gpu, err := r.gpu(i)
		if err == nil {
			err = unique(node.GPUs, gpu)
		}
		var faults []Fault
		if err == nil {
			faults, err = r.readMIG(&gpu)
		}
		if err != nil {
			node.Faults = append(node.Faults, Fault{Index: i, UUID: gpu.UUID, Err: err, Message: err.Error()})
			continue
		}
		node.GPUs = append(node.GPUs, gpu)
		node.Faults = append(node.Faults, faults...)
	}
	return node, nil
}

func unique(gpus []GPU, gpu GPU) error {
	if i := slices.IndexFunc(gpus, func(c GPU) bool { return c.UUID == gpu.UUID }); i >= 0 {
		return fmt.Errorf("GPU %d: UUID %s is also the UUID of GPU %d", gpu.Index, gpu.UUID, gpus[i].Index)
	}
	return nil
}

// cudaVersion formats NVML's number, 1000 * major + 10 * minor.
func cudaVersion(v int) string {
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

// numaSymbol is missing in drivers before 515. go-nvml ends the process when it calls a missing
// function.
const numaSymbol = "nvmlDeviceGetNumaNodeId"

func hostSysfs() fs.FS { return os.DirFS("/sys") }

// readNUMA reads sysfs, or NVML if the kernel does not list the GPU (simulated driver).
func (r reader) readNUMA(gpu *GPU, dev nvml.Device, what string) error {
	if gpu.PCIBusID == "" {
		return nil
	}
	if node, known := r.numa(gpu.PCIBusID); known {
		gpu.NUMANode = node
		return nil
	}
	if !r.has(numaSymbol) {
		return nil
	}
	var err error
	if node, known := askOptional(&err, what, numaSymbol, dev.GetNumaNodeId); known && node >= 0 {
		gpu.NUMANode = node
	}
	return err
}

func sysfsNUMA(sys fs.FS) func(pciBusID string) (node int, known bool) {
	return func(pciBusID string) (int, bool) {
		text, err := fs.ReadFile(sys, path.Join("bus/pci/devices", hardware.SysfsBusID(pciBusID), "numa_node"))
		if err != nil {
			return NUMAUnknown, false
		}
		node, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || node < 0 {
			return NUMAUnknown, err == nil
		}
		return node, true
	}
}
