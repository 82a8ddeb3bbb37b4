package request

import (
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/choose"
)

// defaultGPUPolicy is gpu-manager's own for its resources; empty: the cluster's.
func defaultGPUPolicy(pod *scheduler.Pod, names *Names) string {
	for i := range pod.Containers {
		if pod.Containers[i].Resources[names.VcudaCore].Value > 0 && names.VcudaCore != "" {
			return choose.Tencent
		}
	}
	return ""
}
