//go:build root

package node_test

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

const muslImage = "gpuslice.test/musl:1"

// The limiter in front of the driver's libraries, without a preload and with one: by NRI,
// in images of two C libraries, the share is what is shown and what is had.
func TestLimitHoldsInFrontOfTheDriver(t *testing.T) {
	for _, test := range []struct{ mode, enforcement string }{{"library", "library"}, {"auto", "preload+library"}} {
		t.Run(test.mode, func(t *testing.T) {
			ctx := context.Background()
			n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--limiter-mode=" + test.mode}})
			root, err := harness.MuslRoot(t.TempDir(), true)
			require.NoError(t, err)
			archive := filepath.Join(t.TempDir(), "musl.tar")
			require.NoError(t, harness.WriteImage(archive, muslImage, root))
			require.NoError(t, n.Import(ctx, archive))
			uuid := gpu(t, n, 0)

			for i, c := range []harness.Container{
				{Name: "main"},
				{Name: "main", User: 1000, ReadOnly: true},
				{Name: "main", Image: muslImage, Env: []string{harness.GcompatEnv}},
			} {
				pod := run(t, n, harness.Pod{Name: "p" + string(rune('0'+i)), Annotations: hami(uuid, 2000, 10)})
				id := start(t, pod, c)
				v := exec(t, n, id, workload("meminfo"))
				for _, key := range []string{"device.0.total_bytes", "nvml.0.total_bytes", "nvml.0.v2.total_bytes"} {
					require.Equal(t, int64(2000*mib), number(t, v[key]), key)
				}
				v = exec(t, n, id, workload("alloc"), "--chunk-mib=1")
				require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
				require.Equal(t, int64((2000-contextMiB)*mib), number(t, v["allocated_bytes"]))
				if c.Image == "" {
					for _, command := range [][]string{{workload("meminfo-direct")}, {workload("meminfo"), "--lookup=getproc"}, {workload("meminfo"), "--lookup=getproc_v2"}} {
						require.Equal(t, int64(2000*mib), number(t, exec(t, n, id, command...)["device.0.total_bytes"]), command)
					}
				}
				_, err := harness.LimitedOrNone(spec(t, n, id), n.StateDir())
				require.NoError(t, err)
				require.Equal(t, test.enforcement, spec(t, n, id).Annotations["gpuslice.io/enforcement"])
				out, err := n.CLI(ctx, "status")
				require.NoError(t, err)
				require.Regexp(t, `main .* `+regexp.QuoteMeta(test.enforcement)+`\s*\n`, out)
				require.NoError(t, pod.Remove(ctx))
			}
			requireNothingLeft(t, n)
		})
	}
}

// A MIG device that the kubelet chose belongs to one container, as a whole, with its own memory as the limit.
// The agent's other GPU is shared as before.
func TestMIGDevice(t *testing.T) {
	n := newNode(t, harness.NodeOptions{
		GPUs:      []string{"H200:mig=1g.18gb,mig=1g.18gb", "H200"},
		AgentArgs: []string{"--mig-strategy=mixed"},
	})
	ctx := context.Background()
	out, err := n.Simctl(ctx, "mig", "0", "list")
	require.NoError(t, err)
	var devices []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], "MIG-") {
			devices = append(devices, f[1])
		}
	}
	require.Len(t, devices, 2)
	const (
		deviceMiB = 16384
		cutGPU    = "GPU-00000001-5151-4000-8000-000000000001"
		wholeGPU  = "GPU-00000002-5151-4000-8000-000000000002"
	)
	chosen := func(ids ...string) map[string]string {
		return map[string]string{"gpuslice.io/mig-1g.18gb": strings.Join(ids, "::0,") + "::0"}
	}

	pod := run(t, n, harness.Pod{Name: "mig"})
	id := start(t, pod, harness.Container{Name: "main", Annotations: chosen(devices[0])})
	v := exec(t, n, id, workload("meminfo"))
	require.Equal(t, "1", v["device_count"])
	require.Equal(t, int64(deviceMiB*mib), number(t, v["device.0.total_bytes"]))
	require.Equal(t, int64((deviceMiB-contextMiB)*mib), number(t, v["device.0.info_free_bytes"]))
	v = exec(t, n, id, workload("alloc"), "--chunk-mib=1")
	require.Equal(t, int64((deviceMiB-contextMiB)*mib), number(t, v["allocated_bytes"]), "all of it")
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], "and no more")

	// Its twin belongs to another container; the device itself to no other, and no program gets a second one.
	twin := start(t, run(t, n, harness.Pod{Name: "twin"}), harness.Container{Name: "main", Annotations: chosen(devices[1])})
	require.Equal(t, int64(deviceMiB*mib), number(t, exec(t, n, twin, workload("meminfo"))["device.0.total_bytes"]))
	_, err = run(t, n, harness.Pod{Name: "again"}).Create(ctx, harness.Container{Name: "main", Annotations: chosen(devices[0])})
	require.ErrorContains(t, err, devices[0])

	// A scheduler's grant is of the GPU that is whole, never of the one in MIG mode.
	whole := start(t, run(t, n, harness.Pod{Name: "whole", Annotations: hami(wholeGPU, 4000, 10)}), harness.Container{Name: "main"})
	require.Equal(t, int64(4000*mib), number(t, exec(t, n, whole, workload("meminfo"))["device.0.total_bytes"]))
	_, err = run(t, n, harness.Pod{Name: "cut", Annotations: hami(cutGPU, 4000, 10)}).Create(ctx, harness.Container{Name: "main"})
	require.ErrorContains(t, err, "no such GPU")

	// The author of a pod can't choose.
	_, err = run(t, n, harness.Pod{Name: "own", Annotations: chosen(devices[1])}).Create(ctx, harness.Container{Name: "main"})
	require.ErrorContains(t, err, "is on the pod")

	// The books survive the agent, and are closed with the container.
	n.Agent.Kill()
	require.NoError(t, n.StartAgent(ctx))
	_, err = run(t, n, harness.Pod{Name: "later"}).Create(ctx, harness.Container{Name: "main", Annotations: chosen(devices[0])})
	require.ErrorContains(t, err, devices[0])
	require.NoError(t, pod.Remove(ctx))
	start(t, run(t, n, harness.Pod{Name: "next"}), harness.Container{Name: "main", Annotations: chosen(devices[0])})
}
