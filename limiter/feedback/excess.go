package feedback

import (
	"github.com/gpuslice/gpuslice/limiter"
)

// Peer is a container with turns on a GPU.
type Peer struct {
	limiter.Turn
	// Weight is its share in percent, or what it has without one.
	Weight float64
	Low    bool
	// Free: nothing limits its compute time.
	Free bool
}

// Excess is a container that NVML sees at work for much longer than it is due, while others want the GPU and have less
