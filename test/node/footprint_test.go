//go:build root

package node_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// The node of the agent that is measured: 16 GPUs, 50 pods of 10 containers each, all reserved.
const (
	footprintGPUs       = 16
	footprintPods       = 50
	footprintContainers = 10
	footprintReplicas   = 40 // of each GPU
)

// idleWindows and idleWindow are how long an idle agent is looked at. Together they
// are longer than the time between two looks at the GPUs.
const (
	idleWindows = 3
	idleWindow  = 20 * time.Second
)

// BenchmarkAgentFootprint is what the agent takes of a node with 500 containers, a
// kubelet and an API server: its memory when it has reserved them one by one, and when it
// was started beside them; and its processor time while nothing happens.
func BenchmarkAgentFootprint(b *testing.B) {
	ctx := context.Background()
	kubelet := startKubelet(b)
	kubeconfig, patched := startAPIServer(b)
	gpus := make([]string, footprintGPUs)
	for i := range gpus {
		gpus[i] = "H200"
	}
	n := newNode(b, harness.NodeOptions{GPUs: gpus, AgentArgs: []string{
		fmt.Sprintf("--device-split-count=%d", footprintReplicas), "--device-plugin-dir=" + kubelet.dir, "--kubeconfig=" + kubeconfig,
	}})
	kubelet.waitDevices(b, footprintGPUs*footprintReplicas)
	select {
	case <-patched:
	case <-time.After(time.Minute):
		require.Fail(b, "the agent didn't patch the node")
	}
	report := func(what string) {
		for _, field := range []string{"VmRSS", "RssAnon", "VmHWM"} {
			b.ReportMetric(memoryMB(b, n.Agent.PID(), field), what+"-"+field+"-MB")
		}
	}
	s, err := n.Status(ctx)
	require.NoError(b, err)

	for b.Loop() {
		report("empty")
		for i := range footprintPods {
			shares := map[string]string{}
			for j := range footprintContainers {
				shares[fmt.Sprintf("c%d", j)] = share(s.GPUs[i%footprintGPUs].UUID, 1000, 2)
			}
			pod := run(b, n, harness.Pod{Name: fmt.Sprintf("p%d", i), Annotations: named(shares)})
			for j := range footprintContainers {
				_, err := pod.Create(ctx, harness.Container{Name: fmt.Sprintf("c%d", j)})
				require.NoError(b, err)
			}
		}
		reserved, err := n.Reserved(ctx)
		require.NoError(b, err)
		require.Len(b, reserved, footprintPods*footprintContainers)
		report("reserved")

		require.NoError(b, n.RestartAgent(ctx))
		kubelet.waitDevices(b, footprintGPUs*footprintReplicas)
		report("restarted")

		var all, most float64
		for range idleWindows {
			before := processorTime(b, n.Agent.PID())
			time.Sleep(idleWindow)
			percent := 100 * (processorTime(b, n.Agent.PID()) - before).Seconds() / idleWindow.Seconds()
			all, most = all+percent/idleWindows, max(most, percent)
		}
		b.ReportMetric(all, "idle-%")
		b.ReportMetric(most, "idle-most-%")
		report("idle")
	}
	b.ReportMetric(0, "ns/op") // it has no meaning here
	require.NoError(b, n.RemoveAllPods(ctx))
	requireNothingLeft(b, n)
}

// memoryMB is a field of /proc/<pid>/status in MB (10^6 bytes).
func memoryMB(b *testing.B, pid int, field string) float64 {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name == field {
			return float64(number(b, strings.Fields(value)[0])) * 1024 / 1e6
		}
	}
	require.Fail(b, "no such field", field)
	return 0
}

// processorTime is what a process has used of processors so far, to the nanosecond.
// What ended threads used is not in it; Go's threads stay.
func processorTime(b *testing.B, pid int) time.Duration {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(b, err)
	require.NotEmpty(b, tasks)
	var sum time.Duration
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		require.NoError(b, err)
		sum += time.Duration(number(b, strings.Fields(string(data))[0]))
	}
	return sum
}
