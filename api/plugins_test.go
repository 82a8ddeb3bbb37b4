package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOtherPlugin(t *testing.T) {
	for file, want := range map[string]bool{
		"nvidia-gpu.sock": true, "/var/lib/kubelet/device-plugins/nvidia-mig-1g.10gb.sock": true, "vcore.sock": true, "vmemory.sock": true,
		"gpuslice-nvidia.com_gpu.sock": false, "kubelet.sock": false, "amd.com_gpu": false, "nvidia-gpu.sock.old": false, "": false,
	} {
		require.Equal(t, want, OtherPlugin(file), file)
	}
}
