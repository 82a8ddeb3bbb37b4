package engine

import (
	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// evaluate is fit without the choice of GPUs, which most pods don't need.
func (f *fitter) evaluate(n *node) outcome {
	if f.req.uniform && n != nil {
		if o, ok := f.fastFit(n); ok {
			return o
		}
	}
	return f.fit(n)
}

// fastFit handles one container on identical GPUs with a policy that scores sums: it does not matter
// which GPUs are chosen. ok is false if that can't be decided here.
func (f *fitter) fastFit(n *node) (o outcome, ok bool) {
	container, gpus := &f.req.containers[0], n.gpus
	if len(gpus.total) < container.GPUs {
		return o, false
	}
	f.n, f.after = n, append(f.after[:0], n.used...)
	f.setUsable(n)
	var none gpuLoad
	first := int64(-1) // memory of the first fitting GPU
	given := 0
	for c, why := range f.usable {
		if why != OK {
			continue
		}
		total := &gpus.total[c]
		use, why := f.req.check(&none, 0, &n.used[c], total)
		if why != OK {
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
		return o, false // the reasons have to be counted
	}
	o.fits = true
	o.score = int32(choose.Node(f.req.node, f.req.weights, f.after, gpus.total))
	return o, true
}
