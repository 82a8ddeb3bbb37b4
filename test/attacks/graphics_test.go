//go:build attacks

package attacks

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// graphics are the files for OpenCL, OpenGL and Vulkan that the simulated driver's CDI spec has.
var graphics = []string{
	"/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1", "/usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.0", "/etc/vulkan/icd.d/nvidia_icd.json",
}

// An image asks for all of the driver's libraries. A share has none of those that the limiter does not meter, unless the operator
// allows them.
func TestGraphicsLibrariesAreLeftOut(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string]bool{"default": false, "graphics": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := harness.NodeOptions{}
			if allowed {
				options.AgentArgs = []string{"--graphics"}
			}
			n := newNode(t, options)
			_, id := run(t, n, harness.Pod{Name: "tenant", Annotations: granted(gpu(t, n, 0), 1000, 10)},
				harness.Container{Image: harness.GreedyImage, Env: []string{"NVIDIA_DRIVER_CAPABILITIES=all"}})
			require.Equal(t, "1", exec(t, n, id, workload("meminfo"))["device_count"])
			for _, file := range graphics {
				_, _, code, err := n.Exec(context.Background(), id, "/bin/ls", file)
				require.NoError(t, err)
				require.Equal(t, allowed, code == 0, file)
			}
		})
	}
}
