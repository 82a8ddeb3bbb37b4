package noderegister

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpuslice/gpuslice/api"
)

// The names and forms are those of gpu-feature-discovery.
func TestNVIDIALabels(t *testing.T) {
	n := example()
	for i := range n.Devices {
		n.Devices[i].GPU.MIGCapable = true
	}
	n.DriverVersion = "550.54.15"
	rendered := Render(n, Options{NVIDIALabels: true}).Labels
	got := map[string]string{}
	for _, key := range api.NVIDIALabels {
		got[strings.TrimPrefix(key, "nvidia.com/")] = rendered[key]
		delete(rendered, key)
	}
	assert.Equal(t, map[string]string{
		"gpu.product": "NVIDIA-H200", "gpu.family": "hopper", "gpu.memory": "143771", "gpu.count": "2",
		"gpu.compute.major": "9", "gpu.compute.minor": "0", "mig.capable": "true",
		"cuda.driver-version.full": "550.54.15", "cuda.driver-version.major": "550", "cuda.driver-version.minor": "54", "cuda.driver-version.revision": "15",
		"cuda.runtime-version.full": "12.4", "cuda.runtime-version.major": "12", "cuda.runtime-version.minor": "4",
	}, got)
	assert.Equal(t, Render(n, Options{}).Labels, rendered, "no other label is NVIDIA's")

	n.Devices[1].GPU.Model, n.Devices[1].GPU.ComputeCapability, n.Devices[1].GPU.MemoryMiB = "Tesla T4", "7.5", 15360
	l := Render(n, Options{NVIDIALabels: true}).Labels
	assert.NotContains(t, l, "nvidia.com/gpu.product", "no product is right for all")
	assert.NotContains(t, l, "nvidia.com/gpu.family")
	assert.Equal(t, "15360 7 5", strings.Join([]string{l["nvidia.com/gpu.memory"], l["nvidia.com/gpu.compute.major"], l["nvidia.com/gpu.compute.minor"]}, " "))
	for key, value := range l {
		assert.Empty(t, validation.IsValidLabelValue(value), key)
	}
	for capability, want := range map[string]string{"7.0": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere", "8.9": "ada-lovelace", "9.0": "hopper", "10.3": "blackwell", "12.0": "blackwell", "4.0": "undefined"} {
		assert.Equal(t, want, family(capability), capability)
	}
	for model, want := range map[string]string{"NVIDIA RTX(TM) 6000  Ada": "NVIDIA-RTXTM-6000-Ada", "NVIDIA A100-SXM4-80GB": "NVIDIA-A100-SXM4-80GB"} {
		assert.Equal(t, want, product(model))
	}
}

// Feature discovery's labels stay its own while it runs. When it goes, the agent writes those that are missing.
func TestNVIDIALabelsAfterFeatureDiscovery(t *testing.T) {
	const product, count = "nvidia.com/gpu.product", "nvidia.com/gpu.count"
	before := func(s *apiServer) { s.label("nfd-master", product, "NVIDIA-H200-SHARED") }
	run(t, Options{NVIDIALabels: true}, before, func(p *play) {
		require.Equal(t, "NVIDIA-H200-SHARED", p.server.now().Labels[product])
		require.Equal(t, "2", p.server.now().Labels[count])
		p.server.remove(product, "none")
		p.after(30 * time.Second)
		require.Equal(t, "NVIDIA-H200", p.server.now().Labels[product])
		p.server.label("nfd-master", product, "NVIDIA-H200-SHARED")
		p.after(30 * time.Second)
		require.Equal(t, "NVIDIA-H200-SHARED", p.server.now().Labels[product], "it came back")
		p.stop()
		_, err := Remove(context.Background(), p.server.client(), nodeName)
		require.NoError(t, err)
		require.Equal(t, "NVIDIA-H200-SHARED", p.server.now().Labels[product])
		require.NotContains(t, p.server.now().Labels, count)
	})
}

// Without the option those of before go.
func TestNVIDIALabelsSwitchedOff(t *testing.T) {
	run(t, Options{}, func(s *apiServer) { s.label(FieldManager, "nvidia.com/gpu.count", "2") }, func(p *play) {
		require.NotContains(t, p.server.now().Labels, "nvidia.com/gpu.count")
	})
}
