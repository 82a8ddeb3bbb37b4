package main

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/metrics"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

// reportBarrier warns if NVIDIA's runtime has no gpuslice-runtime in front of it: then every pod
// gets GPUs while the agent does not run.
func reportBarrier(env func(string) string, registry prometheus.Registerer, log *slog.Logger) {
	if env(api.EnvVisibleDevices) == "" {
		return
	}
	there := env(ociruntime.BarrierEnv) == "1"
	metrics.RegisterBarrier(registry, there)
	if !there {
		log.Warn("while this agent does not run, pods without a grant can get whole GPUs: NVIDIA's container runtime has no gpuslice-runtime in front of it; " +
			"restart containerd on the node if the barrier was installed since, otherwise run `gpuslice install containerd` there first (gpuslice doctor checks it)")
	}
}
