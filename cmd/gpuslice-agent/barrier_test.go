package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
)

// The agent reports whether the barrier is in front of NVIDIA's runtime, if that gave it its GPUs.
func TestMissingBarrierIsReported(t *testing.T) {
	const none = -1
	for _, test := range []struct {
		description string
		env         map[string]string
		metric      float64
		warns       bool
	}{
		{"no NVIDIA runtime", nil, none, false},
		{"only NVIDIA's runtime", map[string]string{api.EnvVisibleDevices: "all"}, 0, true},
		{"behind gpuslice-runtime", map[string]string{api.EnvVisibleDevices: "all", ociruntime.BarrierEnv: "1"}, 1, false},
		{"behind gpuslice-runtime, by CDI", map[string]string{api.EnvVisibleDevices: "void", ociruntime.BarrierEnv: "1"}, 1, false},
	} {
		var log bytes.Buffer
		registry := prometheus.NewPedanticRegistry()
		reportBarrier(func(name string) string { return test.env[name] }, registry, slog.New(slog.NewTextHandler(&log, nil)))
		assert.Equal(t, test.warns, strings.Contains(log.String(), "gpuslice install containerd"), test.description)
		if test.metric == none {
			count, err := testutil.GatherAndCount(registry)
			assert.NoError(t, err)
			assert.Zero(t, count, test.description)
			continue
		}
		families, err := registry.Gather()
		assert.NoError(t, err)
		if assert.Len(t, families, 1, test.description) {
			assert.Equal(t, test.metric, families[0].Metric[0].Gauge.GetValue(), test.description)
		}
	}
}
