//go:build root

package hostinstall

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/oci/request"
	"github.com/gpuslice/gpuslice/test/harness"
)

// Each handler that runs NVIDIA's runtime gets ours in front of it, and uninstall removes it.
func TestBarrierInFrontOfNvidiasRuntime(t *testing.T) {
	h := newTestHost(t)
	h.put(containerdTOML, mainV3)
	h.put("/etc/containerd/conf.d/99-nvidia.toml", nvidiaDropIn)
	before := h.files()
	o := h.options("containerd")
	o.ExemptNamespaces = []string{"gpuslice-system", "dcgm"}
	out, err := h.install(o)
	require.NoError(t, err)
	assert.Contains(t, out, "a pod without a grant gets no GPU from the runtime handlers nvidia, nvidia-cdi")

	assert.Empty(t, h.containerd().Handlers(doctor.IsNvidiaRuntime))
	nvidia, _ := lookup(h.containerd().Plugins, []string{doctor.PluginCRI, "containerd", "runtimes", "nvidia", "options"})
	assert.Equal(t, map[string]any{"BinaryName": o.RuntimePath, "SystemdCgroup": true}, nvidia, "the rest stays")
	newest, err := harness.Tool("containerd")
	require.NoError(t, err)
	real, _ := lookup(dump(t, newest, h.path(containerdTOML)), []string{"plugins", doctor.PluginCRI, "containerd", "runtimes"})
	for _, handler := range []string{"nvidia", "nvidia-cdi"} {
		binary, _ := lookup(real.(map[string]any), []string{handler, "options", "BinaryName"})
		assert.Equal(t, o.RuntimePath, binary, "containerd itself reads it so")
	}
	c, err := request.Parse(api.RuntimeConfig, []byte(h.read(api.RuntimeConfig)))
	require.NoError(t, err)
	assert.Equal(t, "/usr/local/nvidia/toolkit/nvidia-container-runtime", c.NvidiaRuntime)
	assert.Equal(t, []string{"gpuslice-system", "dcgm"}, c.ExemptNamespaces)

	installed := h.files()
	_, err = h.install(o)
	require.NoError(t, err)
	assert.Equal(t, installed, h.files(), "a second time changes nothing")

	_, err = h.uninstall(o)
	require.NoError(t, err)
	assert.Equal(t, before, h.files())
}
