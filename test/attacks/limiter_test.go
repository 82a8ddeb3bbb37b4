//go:build attacks

package attacks

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// A tenant makes memory, exports it to a descriptor, releases it and imports it again, in
// one process and out of processes that end, or keeps the descriptors of those. It has no
// more than its share.
func TestExportedMemoryIsNoWayPastTheLimit(t *testing.T) {
	t.Parallel()
	const limitMiB = 4000
	n := newNode(t, harness.NodeOptions{})
	_, id := run(t, n, harness.Pod{Name: "attacker", Annotations: granted(gpu(t, n, 0), limitMiB, 10)}, harness.Container{})
	for _, how := range []string{"own", "others"} {
		v := exec(t, n, id, workload("exported"), how, "10", "1000")
		mapped, err := strconv.Atoi(v["mapped_bytes"])
		require.NoError(t, err)
		require.Positive(t, mapped, how)
		require.LessOrEqual(t, mapped, limitMiB*mib, how)
		free, err := strconv.Atoi(v["free_bytes"])
		require.NoError(t, err)
		require.LessOrEqual(t, mapped+free, limitMiB*mib, how)
	}
	v := exec(t, n, id, workload("exported"), "kept", "10", "1000")
	held, err := strconv.Atoi(v["held_bytes"])
	require.NoError(t, err)
	require.Positive(t, held)
	require.LessOrEqual(t, held, limitMiB*mib, "by descriptors of processes that have ended")
	v = exec(t, n, id, workload("meminfo"))
	require.Equal(t, strconv.Itoa((limitMiB-contextMiB)*mib), v["device.0.info_free_bytes"], "all of it is given back")
}

// A tenant has a program that is linked with -lcuda load the driver's own library before
// the limiter. The process ends before its first call.
func TestDriverBeforeTheLimiterGivesNoGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t, harness.NodeOptions{})
	_, id := run(t, n, harness.Pod{Name: "attacker", Annotations: granted(gpu(t, n, 0), 1000, 10)}, harness.Container{})
	for _, path := range []string{"/proc/self/root/.gpuslice/driver/cuda", "/.gpuslice/driver/../driver/cuda", "/tmp/link.so"} {
		stdout, stderr, code, err := n.Exec(context.Background(), id, "/bin/sh", "-c",
			"/bin/busybox ln -sf /.gpuslice/driver/cuda /tmp/link.so; LD_PRELOAD="+path+" "+workload("meminfo-direct"))
		require.NoError(t, err)
		require.Equal(t, 127, code, "%s: %s%s", path, stdout, stderr)
		require.Contains(t, stderr, path+" is loaded before the limiter", path)
		require.NotContains(t, stdout, "total_bytes", path)
	}
	require.Equal(t, strconv.Itoa(1000*mib), exec(t, n, id, workload("meminfo-direct"))["device.0.total_bytes"])
}

// graphics are the files for OpenCL, OpenGL and Vulkan that the simulated driver's CDI spec has.
var graphics = []string{
	"/usr/lib/" + harness.Triplet + "/libnvidia-opencl.so.1", "/usr/lib/" + harness.Triplet + "/libGLX_nvidia.so.0", "/etc/vulkan/icd.d/nvidia_icd.json",
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
