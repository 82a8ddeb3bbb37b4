//go:build root

package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// heldBytes are what all processes have of the first GPU, by the driver's own books.
func heldBytes(t *testing.T, n *harness.Node) uint64 {
	text, err := n.Simctl(context.Background(), "status", "-o", "json")
	require.NoError(t, err)
	var status struct {
		GPUs []struct {
			Used uint64 `json:"memory_used_bytes"`
		} `json:"gpus"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &status))
	return status.GPUs[0].Used
}

// The agent reports the same memory of a container on a GPU as the driver, to a hundredth, for any part that
// the limiter has not charged: contexts that are larger than their charge, data of modules, and physical
// memory that was made around the limiter. A neighbour without any of this has no residue.
func TestResidueIsRight(t *testing.T) {
	ctx := context.Background()
	dynamic, _, _ := buildCheats(t)
	n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--context-memory-mib=400", "--limiter-mode=preload"}})
	root, err := harness.GlibcRoot()
	require.NoError(t, err)
	root.Files["opt/cheat"] = dynamic
	archive := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, harness.WriteImage(archive, cheatImage, root))
	require.NoError(t, n.Import(ctx, archive))
	uuid := gpu(t, n, 0)

	neighbour := run(t, n, harness.Pod{Name: "neighbour", Annotations: hami(uuid, 20000, 10)})
	c := harness.Container{Name: "main", Command: []string{workload("hold"), "--mib=7777"}}
	start(t, neighbour, c)
	waitReady(t, neighbour, c)
	others := heldBytes(t, n)

	for i, test := range []struct {
		name, line string
		processes  int
	}{
		{"contexts", workload("hold") + " --mib=0 & " + workload("hold") + " --mib=3000", 2},
		{"modules", "/opt/cheat libcuda.so.1 dlsym 1234 module & " + workload("hold") + " --mib=100", 2},
		{"physical memory past the limiter", copied + "elf 3334 vmm", 1},
		{"graphics", "export SIMGPU_GRAPHICS=only; " + copied + "elf 2346 vmm", 1},
		{"all of it", "/opt/cheat libcuda.so.1 dlsym 77 module & " + workload("hold") + " --mib=2500 & " + copied + "elf 1002 vmm", 3},
		{"nothing but what is charged, and a context", workload("alloc") + " --max-mib=9000 --hold=0", 1},
	} {
		pod := run(t, n, harness.Pod{Name: fmt.Sprint("p", i), Annotations: hami(uuid, 20000, 10)})
		start(t, pod, harness.Container{Name: "main", Image: cheatImage, Command: []string{"/bin/sh", "-c", test.line}})
		atWork(t, pod, test.processes)
		var seen, charged, truth uint64
		require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
			s, err := n.Status(ctx)
			if err != nil || len(s.Containers) != 2 {
				return fmt.Errorf("%d containers: %w", len(s.Containers), err)
			}
			truth = heldBytes(t, n) - others
			of := s.Containers[1].Shares[0]
			charged, seen = of.UsedBytes, of.UsedBytes+of.ResidueBytes
			if off := math.Abs(float64(seen)/float64(truth) - 1); !(off <= 0.01) {
				return fmt.Errorf("%s: %d MiB are charged, with the residue %d MiB, and the driver has %d MiB", test.name, charged/mib, seen/mib, truth/mib)
			}
			// The neighbour has its larger context beyond what is charged, and no more.
			if first := s.Containers[0].Shares[0]; first.UsedBytes+first.ResidueBytes != others {
				return fmt.Errorf("the neighbour: %d + %d bytes, and the driver has %d", first.UsedBytes, first.ResidueBytes, others)
			}
			return nil
		}))
		t.Logf("%s: charged %.1f MiB, published %.1f MiB, the driver's books %.1f MiB, off by %.4f %%", test.name,
			float64(charged)/mib, float64(seen)/mib, float64(truth)/mib, 100*math.Abs(float64(seen)/float64(truth)-1))
		require.NoError(t, pod.Remove(ctx))
	}
	require.NoError(t, neighbour.Remove(ctx))
	requireNothingLeft(t, n)
}

// atWork waits until so many of a pod's programs have what they hold.
func atWork(t *testing.T, pod *harness.Sandbox, programs int) {
	require.NoError(t, harness.Until(context.Background(), time.Minute, func(context.Context) error {
		says, err := pod.Logs(harness.Container{Name: "main"})
		if err == nil && strings.Count(says, "ready=1") < programs {
			err = fmt.Errorf("not ready: %s", says)
		}
		return err
	}))
}
