package main

import (
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/view"
)

// What the agent shows: the GPUs by NVML, without a container runtime.
func TestMetricsHandler(t *testing.T) {
	o := testOptions(t)
	stop, log := o.run(t)
	var node view.Node
	require.Eventually(t, func() bool {
		answer := get(o.MetricsAddress, "/api/v1/view")
		return answer.status == 200 && json.Unmarshal([]byte(answer.body), &node) == nil && len(node.GPUs) == 1 && node.GPUs[0].Telemetry != nil
	}, 2*time.Minute, 5*time.Millisecond, "%v", log)
	assert.Equal(t, "node-1", node.Name)
	assert.True(t, node.GPUs[0].Healthy)
	assert.NotNil(t, node.GPUs[0].Telemetry.TemperatureCelsius)
	assert.Equal(t, []view.Container{}, node.Containers)

	page := get(o.MetricsAddress, "/")
	assert.Equal(t, 200, page.status)
	assert.Contains(t, page.body, "GPUs of node-1")
	assert.Contains(t, page.body, node.GPUs[0].UUID)

	metrics := get(o.MetricsAddress, "/metrics")
	require.Equal(t, 200, metrics.status)
	gpu := `{index="0",model="NVIDIA H200",node="node-1",uuid="` + node.GPUs[0].UUID + `"}`
	for _, line := range []string{
		"gpuslice_gpu_healthy" + gpu + " 1", "gpuslice_gpu_containers" + gpu + " 0", "gpuslice_gpu_temperature_celsius" + gpu + " 30",
		"gpuslice_nri_connected 0", "gpuslice_claims 0", "gpuslice_orphans 0", `gpuslice_containers{enforcement="preload"} 0`,
		`gpuslice_refusals_total{reason="overbooked"} 0`, `gpuslice_nri_request_duration_seconds_count{event="CreateContainer"} 0`,
	} {
		assert.Contains(t, metrics.body, "\n"+line+"\n")
	}
	assert.Contains(t, metrics.body, "gpuslice_build_info{")
	assert.Equal(t, 404, get(o.MetricsAddress, "/healthz").status, "that is --health-address's")
	require.NoError(t, stop())

	taken, err := net.Listen("tcp", o.MetricsAddress)
	require.NoError(t, err, "its port is free again")
	defer taken.Close()
	stop, _ = o.run(t)
	require.ErrorContains(t, stop(), "--metrics-address: listen tcp")
	o.MetricsAddress = ""
	stop, log = o.run(t)
	require.Eventually(t, func() bool { return get(o.HealthAddress, "/healthz").status == 200 }, 2*time.Minute, 5*time.Millisecond, "%v", log)
	require.NoError(t, stop())
}
