package nvidia

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

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
}

func (r reader) open() error {
	return check(theDriver, "nvmlInit", r.lib.Init())
}

func (r reader) close() error {
	return check(theDriver, "nvmlShutdown", r.lib.Shutdown())
}

// read checks ctx between GPUs only: a call of NVML can't be interrupted.
func (r reader) read(ctx context.Context) (Node, error) {
	driver, ret := r.lib.SystemGetDriverVersion()
	if err := check(theDriver, "nvmlSystemGetDriverVersion", ret); err != nil {
		return Node{}, err
	}
	cuda, ret := r.lib.SystemGetCudaDriverVersion()
	if err := check(theDriver, "nvmlSystemGetCudaDriverVersion", ret); err != nil {
		return Node{}, err
	}
	count, ret := r.lib.DeviceGetCount()
	if err := check(theDriver, "nvmlDeviceGetCount", ret); err != nil {
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
	for _, c := range gpus {
		if c.UUID == gpu.UUID {
			return fmt.Errorf("GPU %d: UUID %s is also the UUID of GPU %d", gpu.Index, gpu.UUID, c.Index)
		}
	}
	return nil
}

// cudaVersion formats NVML's number, 1000 * major + 10 * minor.
func cudaVersion(v int) string {
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}
