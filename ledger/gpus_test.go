package ledger_test

import "github.com/gpuslice/gpuslice/grant"

const (
	gpuA = "GPU-0a000000-1111-2222-3333-444455556666"
	gpuB = "GPU-0b000000-1111-2222-3333-444455556666"
	gpuC = "GPU-0c000000-1111-2222-3333-444455556666"
	gpuX = "GPU-0d000000-1111-2222-3333-444455556666"
)

// testGPUs are a node with three GPUs of 100,000 MiB.
func testGPUs() map[string]grant.GPU {
	gpus := map[string]grant.GPU{}
	for _, uuid := range []string{gpuA, gpuB, gpuC} {
		gpus[uuid] = grant.GPU{UUID: uuid, MemoryMiB: 100_000, CorePercent: 100, Replicas: 10}
	}
	return gpus
}
