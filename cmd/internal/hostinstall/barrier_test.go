package hostinstall

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// nvidiaDropIn is the file that nvidia-ctk and NVIDIA's GPU operator write.
const nvidiaDropIn = `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
  BinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime'
  SystemdCgroup = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia-cdi]
  runtime_type = 'io.containerd.runc.v2'
  container_annotations = ['cdi.k8s.io/*']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia-cdi.options]
  BinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi'
`

const mainV3 = "version = 3\nimports = [\"conf.d/*.toml\"]\n"

// containerd is the host's containerd configuration.
func (h *testHost) containerd() doctor.Containerd {
	machine, err := doctor.NewMachine(h.root)
	require.NoError(h.t, err)
	defer machine.Close()
	c, err := doctor.ReadContainerd(machine, containerdTOML, "2.4.2")
	require.NoError(h.t, err)
	return c
}

// An existing runtime.yaml is not changed.
func TestBarrierLeavesAnOperatorsConfig(t *testing.T) {
	for text, noted := range map[string]bool{
		"maximum: {memory: 8GiB}\n": true,
		"nonsense: 1\n":             true,
		"nvidiaRuntime: /usr/local/nvidia/toolkit/nvidia-container-runtime\nexemptNamespaces: [a, gpuslice-system]\n": false,
	} {
		h := newTestHost(t)
		h.put(containerdTOML, mainV3)
		h.put("/etc/containerd/conf.d/99-nvidia.toml", nvidiaDropIn)
		h.put(api.RuntimeConfig, text)
		o := h.options("containerd")
		out, err := h.install(o)
		require.NoError(t, err)
		assert.Equal(t, text, h.read(api.RuntimeConfig))
		const note = "It must contain nvidiaRuntime: /usr/local/nvidia/toolkit/nvidia-container-runtime, stateDir: /run/gpuslice and exemptNamespaces: [gpuslice-system]"
		if noted {
			assert.Contains(t, out, note)
		} else {
			assert.NotContains(t, out, note)
		}
	}
}

// --require-agent adds the plugin to those that NRI requires, and keeps the others.
func TestRequireAgent(t *testing.T) {
	h := newTestHost(t)
	h.put(containerdTOML, "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  required_plugins = ['other']\n")
	before := h.read(containerdTOML)
	o := h.options("containerd")
	_, err := h.install(o)
	require.NoError(t, err)
	assert.NotContains(t, h.read(dropInFile), "required_plugins")
	o.RequireAgent = true
	_, err = h.install(o)
	require.NoError(t, err)
	assert.Contains(t, h.read(dropInFile), "required_plugins = ['other', 'gpuslice']\n")
	o.RequireAgent = false
	_, err = h.install(o)
	require.NoError(t, err)
	assert.Contains(t, h.read(dropInFile), "required_plugins = ['other', 'gpuslice']\n", "an install without the option keeps it")
	_, err = h.uninstall(o)
	require.NoError(t, err)
	assert.Equal(t, before, h.read(containerdTOML))
}

// If the file is not the one that containerd reads, --require-nvidia fails and changes
// nothing. Otherwise the chart's init container would install a barrier without effect.
func TestRequireNvidia(t *testing.T) {
	for name, test := range map[string]struct{ config, want string }{
		"no file":    {"", containerdTOML + " does not exist"},
		"no handler": {mainV3, "no runtime handler in " + containerdTOML + ", or in the files that it imports, runs NVIDIA's container runtime"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			if test.config != "" {
				h.put(containerdTOML, test.config)
			}
			o := h.options("containerd")
			o.RequireNvidia = true
			_, err := h.install(o)
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "barrier.containerdConfig", "what to do")
			require.ErrorContains(t, err, "barrier.install=false", "what to do")
			require.NoFileExists(t, h.path(api.RuntimeConfig))
			if test.config == "" {
				require.NoFileExists(t, h.path(containerdTOML))
			}
			o.RequireNvidia = false
			_, err = h.install(o)
			require.NoError(t, err, "containerd runs without a file, and GPUs may come by CDI")
			require.FileExists(t, h.path(containerdTOML))
		})
	}
}

// The chart's programs replace those of a barrier that was installed by hand, and uninstall
// restores NVIDIA's handlers.
func TestBarrierFromAnotherPath(t *testing.T) {
	h := newTestHost(t)
	h.put(containerdTOML, mainV3)
	h.put("/etc/containerd/conf.d/99-nvidia.toml", nvidiaDropIn)
	o := h.options("containerd")
	_, err := h.install(o)
	require.NoError(t, err)
	chart := o
	chart.RuntimePath, chart.RequireNvidia = "/var/lib/gpuslice/bin/gpuslice-runtime", true
	h.put(chart.RuntimePath, "#!/bin/sh\n")
	require.NoError(t, os.Chmod(h.path(chart.RuntimePath), 0o755))
	_, err = h.install(chart)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"nvidia": chart.RuntimePath, "nvidia-cdi": chart.RuntimePath, Name: chart.RuntimePath}, h.containerd().Handlers(doctor.IsOurRuntime))
	_, err = h.uninstall(chart)
	require.NoError(t, err)
	assert.Empty(t, h.containerd().Handlers(doctor.IsOurRuntime))
	assert.Len(t, h.containerd().Handlers(doctor.IsNvidiaRuntime), 2)
}
