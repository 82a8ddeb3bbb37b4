package metrics_test

import (
	"time"

	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

func pointer[T any](v T) *T { return &v }

// telemetry is of the node's H200; the other GPU has none.
func telemetry() map[string]nvidia.Telemetry {
	return map[string]nvidia.Telemetry{nodetest.H200: {
		Taken: time.Now(), MemoryUsedBytes: pointer(uint64(5 << 30)), MemoryTotalBytes: pointer(uint64(143771 << 20)),
		UtilizationPercent: pointer(87), MemoryControllerPercent: pointer(43), TemperatureCelsius: pointer(61), PowerMilliwatts: pointer(uint32(350500)),
	}}
}
