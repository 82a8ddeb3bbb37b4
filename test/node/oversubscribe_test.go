//go:build root

package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// On a node that grants twice the memory of its GPU, containers have limits that are more than the GPU together, and each limit holds:
// what is beyond a container's part of the GPU can be in the host's memory, and is reported. More than twice is not granted. The
// simulated driver charges managed memory to its GPU, so together they hold no more than that.
func TestMoreMemoryIsGrantedThanTheGPUHas(t *testing.T) {
	const (
		gpuMiB   = 15360 // of a T4
		cudaMiB  = 105   // of a context there
		limitMiB = 14000
		partMiB  = limitMiB / 2
		holdsMiB = partMiB + 200
	)
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{GPUs: []string{"T4"}, AgentArgs: []string{"--device-memory-scaling=2"}})
	uuid := gpu(t, n, 0)
	holds := harness.Container{Name: "main", Command: []string{workload("hold"), fmt.Sprintf("--mib=%d", holdsMiB)}}
	for i := range 2 {
		pod := run(t, n, harness.Pod{Name: fmt.Sprint("holds-", i), Annotations: hami(uuid, limitMiB, 10)})
		id := start(t, pod, holds)
		waitReady(t, pod, holds)
		out, err := n.CLI(ctx, "describe", "container", id, "-o", "json")
		require.NoError(t, err)
		var described struct {
			Oversubscribe bool
			Shares        []struct {
				UsedBytes int64
				Limit     struct{ MemoryBytes, PhysicalBytes int64 }
				Parts     map[string]int64
			}
		}
		require.NoError(t, json.Unmarshal([]byte(out), &described))
		require.True(t, described.Oversubscribe)
		require.Len(t, described.Shares, 1, out)
		share := described.Shares[0]
		require.Equal(t, int64(limitMiB*mib), share.Limit.MemoryBytes)
		require.InDelta(t, partMiB*mib, share.Limit.PhysicalBytes, mib)
		require.Equal(t, int64((holdsMiB+cudaMiB)*mib), share.UsedBytes)
		require.Equal(t, int64(holdsMiB*mib), share.Parts["spilled"], "it is one piece, larger than the part of the GPU")

		v := exec(t, n, id, workload("meminfo"))
		require.Equal(t, int64(limitMiB*mib), number(t, v["device.0.total_bytes"]))
		if i == 0 {
			v = exec(t, n, id, workload("alloc"), "--chunk-mib=1")
			require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
			require.Equal(t, int64((limitMiB-holdsMiB-2*cudaMiB)*mib), number(t, v["allocated_bytes"]))
		}
	}
	third := run(t, n, harness.Pod{Name: "third", Annotations: hami(uuid, 2*gpuMiB-2*limitMiB+1, 10)})
	_, err := third.Start(ctx, harness.Container{Name: "main"})
	require.ErrorContains(t, err, uuid)
	require.NoError(t, third.Remove(ctx))
	last := run(t, n, harness.Pod{Name: "last", Annotations: hami(uuid, 2*gpuMiB-2*limitMiB, 10)})
	start(t, last, harness.Container{Name: "main"})
}
