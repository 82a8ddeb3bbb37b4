//go:build root

package node_test

import (
	"context"
	"path/filepath"
	"regexp"
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
