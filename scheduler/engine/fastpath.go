package engine

import (
	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// evaluate is fit without choosing GPUs, where possible.
func (f *fitter) evaluate(n *node) outcome {
	if f.req.uniform && n != nil {
		if o, ok := f.fastFit(n); ok {
			return o
		}
	}
	return f.fit(n)
}

// fastFit handles one container if it does not matter which GPUs it gets. ok is false if it can't decide.
func (f *fitter) fastFit(n *node) (o outcome, ok bool) {
	container, gpus := &f.req.containers[0], n.gpus
	if len(gpus.total) < container.GPUs {
		return o, false
	}
	f.n, f.after = n, append(f.after[:0], n.used...)
	f.setUsable(n)
	var none gpuLoad
	first := int64(-1) // of the first fitting GPU
	given := 0
	for c, reason := range f.usable {
		if reason != OK {
			continue
		}
		total := &gpus.total[c]
		use, reason := f.req.check(&none, 0, &n.used[c], total)
		if reason != OK {
			continue
		}
		if first < 0 {
			first = total.MemoryMiB
		}
		if total.MemoryMiB != first && (container.MemoryMiB == 0 || container.Cores == 0) { // use or gpuPercent depends on the GPU
			return o, false
		}
		if given < container.GPUs {
			f.after[c] = f.after[c].Add(use)
			given++
			o.memoryMiB += use.MemoryMiB
			o.cores += int32(use.Cores)
			o.gpuPercent += int32(quota.GPUPercent(use.Cores, use.MemoryMiB, total.MemoryMiB))
		}
	}
	if given < container.GPUs {
		return o, false // the reasons are needed
	}
	o.fits = true
	o.score = int32(choose.Node(f.req.node, f.req.weights, f.after, gpus.total))
	return o, true
}
