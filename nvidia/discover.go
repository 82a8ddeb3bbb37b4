package nvidia

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// theDriver is what an error is about that is about no GPU.
const theDriver = "the driver"

// Discover opens NVML, reads the node once, and closes NVML. A GPU that can't be
// read is among the node's faults; an error means that nothing could be read.
func Discover(lib nvml.Interface) (Node, error) {
	r := reader{lib: lib, numa: sysfsNUMA(hostSysfs())}
	if err := r.open(); err != nil {
		return Node{}, err
	}
	node, err := r.read(context.Background())
	return node, errors.Join(err, r.close())
}

// reader is who opened NVML: it reads while it is open, and closes it.
type reader struct {
	lib  nvml.Interface
	numa func(pciBusID string) (node int, known bool)
}

// open loads and initializes NVML.
func (r reader) open() error {
	return check(theDriver, "nvmlInit", r.lib.Init())
}

// close ends what open began.
func (r reader) close() error {
	return check(theDriver, "nvmlShutdown", r.lib.Shutdown())
}

// read reads the node. The context is looked at between GPUs: a call of NVML
// can't be interrupted.
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

// unique refuses a second GPU of the same UUID, which everything is keyed by.
func unique(gpus []GPU, gpu GPU) error {
	for _, c := range gpus {
		if c.UUID == gpu.UUID {
			return fmt.Errorf("GPU %d: its UUID %s is GPU %d's too", gpu.Index, gpu.UUID, c.Index)
		}
	}
	return nil
}

// cudaVersion writes NVML's number, 1000 * major + 10 * minor, for people.
func cudaVersion(v int) string {
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}
