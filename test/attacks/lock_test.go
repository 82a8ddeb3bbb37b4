//go:build attacks

package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
)

// spin keeps a GPU busy.
const spin = harness.WorkloadDir + "/spin --seconds=1000 --kernels-us=5000 --mode=async"

// auditedNode is a node with an agent that audits every second.
func auditedNode(t *testing.T, args ...string) (*harness.Node, metrics) {
	at := freeMetrics(t)
	return newNode(t, harness.NodeOptions{AgentArgs: append([]string{"--audit-interval=1s", at.option()}, args...)}), at
}

// tampered waits until the audit reports so many containers.
func tampered(t *testing.T, at metrics, want float64) {
	t.Helper()
	until(t, func(ctx context.Context) error {
		found, err := at.violations(ctx, "tampered-files")
		if err == nil && found != want {
			err = fmt.Errorf("%v violations", found)
		}
		return err
	})
}

// tamperer runs a pod with a share and a container that attacks.
func tamperer(t *testing.T, n *harness.Node, name, attack string) (*harness.Sandbox, string) {
	t.Helper()
	return run(t, n, harness.Pod{Name: name, Annotations: granted(gpu(t, n, 0), 1000, 5)}, harness.Container{
		Command: strings.Fields(workload("attack") + " " + attack),
	})
}

// claimDir is the directory of a container's claim.
func claimDir(n *harness.Node, id string) string {
	return filepath.Join(n.StateDir(), "containers", id)
}

// waitMeasured waits until the agent has measured the work of so many containers.
func waitMeasured(t *testing.T, at metrics, containers int) {
	t.Helper()
	until(t, func(ctx context.Context) error {
		all, err := at.all(ctx)
		work := 0
		for name, ratio := range all {
			if strings.HasPrefix(name, "gpuslice_container_core_used_ratio{") && ratio > 0 {
				work++
			}
		}
		if err == nil && work < containers {
			err = fmt.Errorf("%d of %d containers at work were measured", work, containers)
		}
		return err
	})
}

// grants proves that the node gives a share to a new container, and that the agent is well.
func grants(t *testing.T, n *harness.Node, pod string) {
	t.Helper()
	_, id := run(t, n, harness.Pod{Name: pod, Annotations: granted(gpu(t, n, 0), 1000, 5)}, harness.Container{})
	require.Equal(t, "1", exec(t, n, id, workload("meminfo"))["device_count"])
	require.NoError(t, n.Health(context.Background(), "/healthz"))
}

// A tenant of any user locks its read-only limits file. The loop that follows shares of
// compute time stopped for all containers, and SIGTERM did not end the agent.
func TestLockOnLimitsStopsNoLoopAndNoGrant(t *testing.T) {
	t.Parallel()
	n, at := auditedNode(t)
	s, _ := run(t, n, harness.Pod{Name: "attacker", Annotations: granted(gpu(t, n, 0), 2000, 10)}, harness.Container{
		User: 1000, Command: []string{"/bin/sh", "-c", spin + " & exec " + workload("attack") + " flock /.gpuslice/limits"},
	})
	wait(t, s, "ready", "1")
	run(t, n, harness.Pod{Name: "victim", Annotations: granted(gpu(t, n, 0), 2000, 60)}, harness.Container{Command: strings.Fields(spin)})
	waitMeasured(t, at, 2)
	tampered(t, at, 1)
	grants(t, n, "new")
	require.NoError(t, n.Agent.Signal(syscall.SIGTERM))
	until(t, func(context.Context) error {
		select {
		case <-n.Agent.Exited():
			return nil
		default:
			return fmt.Errorf("the agent has not stopped")
		}
	})
	require.NoError(t, n.Agent.Err(), "it ended itself because a task did not stop")
	require.NoError(t, n.StartAgent(context.Background()))
	grants(t, n, "later")
}

// A tenant locks its limits, or holds a lease on them, and asks for a resize of its own pod.
// Every GPU container of the node was refused until the tenant's container ended.
func TestResizeOfALockedContainerStopsNoGrant(t *testing.T) {
	t.Parallel()
	for _, attack := range []string{"flock", "read-lease", "write-lease"} {
		t.Run(attack, func(t *testing.T) {
			t.Parallel()
			n, at := auditedNode(t)
			s, id := tamperer(t, n, "attacker", attack+" /.gpuslice/limits")
			restart := func() {
				n.Agent.Kill()
				wait(t, s, "ready", "1")
				value := strings.Replace(granted(gpu(t, n, 0), 4000, 20)["gpuslice.io/grant"], `"version":1`, `"version":1,"generation":1`, 1)
				kept, err := json.Marshal(map[string]string{"grant": value})
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(n.StateDir(), "resized", "uid-attacker.json"), kept, 0o600))
				require.NoError(t, n.StartAgent(context.Background()))
			}
			restart()
			for i := range 3 {
				grants(t, n, fmt.Sprint("new", i))
			}
			tampered(t, at, 1)
			// A lock delays nothing, and the container gets what it asked for. A lease
			// delays that until the kernel has taken it away.
			if attack == "flock" {
				until(t, func(context.Context) error {
					l, err := limiter.ReadLimits(limiter.LimitsPath(claimDir(n, id)))
					if err == nil && l.Devices[0].MemoryLimitBytes != 4000*mib {
						err = fmt.Errorf("it has %d bytes", l.Devices[0].MemoryLimitBytes)
					}
					return err
				})
			}
		})
	}
}

// While the agent runs no tenant gets a lease on its files.
func TestNoLeaseWhileTheAgentRuns(t *testing.T) {
	t.Parallel()
	n, at := auditedNode(t)
	var pods []*harness.Sandbox
	for _, attack := range []string{"read-lease /.gpuslice/limits", "write-lease /.gpuslice/limits", "read-lease /.gpuslice/usage", "write-lease /.gpuslice/usage"} {
		s, _ := tamperer(t, n, fmt.Sprint("attacker", len(pods)), attack)
		pods = append(pods, s)
		wait(t, s, "refused", "1")
	}
	run(t, n, harness.Pod{Name: "one", Annotations: granted(gpu(t, n, 0), 2000, 30)}, harness.Container{Command: strings.Fields(spin)})
	run(t, n, harness.Pod{Name: "two", Annotations: granted(gpu(t, n, 0), 2000, 30)}, harness.Container{Command: strings.Fields(spin)})
	waitMeasured(t, at, 2)
	found, err := at.violations(context.Background(), "tampered-files")
	require.NoError(t, err)
	require.Zero(t, found)
	for _, s := range pods {
		log, err := s.Logs(harness.Container{Name: "main"})
		require.NoError(t, err)
		require.NotContains(t, log, "ready")
	}
}

// A tenant takes a lease while the agent is down. The agent that starts then was dropped by
// the runtime again and again: granted containers had no GPU, and images that ask for all
// GPUs kept their variable. By policy the tenant's process is ended, which is on no GPU.
func TestLeaseWhileTheAgentIsAway(t *testing.T) {
	t.Parallel()
	n, at := auditedNode(t, "--on-violation=kill", "--violation-grace=4s")
	type lessee struct {
		pod *harness.Sandbox
		id  string
	}
	var lessees []lessee
	for _, attack := range []string{"write-lease /.gpuslice/limits", "read-lease /.gpuslice/limits", "write-lease /.gpuslice/usage", "fill-lease /.gpuslice/usage"} {
		s, id := tamperer(t, n, fmt.Sprint("attacker", len(lessees)), attack)
		lessees = append(lessees, lessee{s, id})
		wait(t, s, "refused", "1")
	}
	spinners := []string{}
	for i := range 2 {
		_, id := run(t, n, harness.Pod{Name: fmt.Sprint("victim", i), Annotations: granted(gpu(t, n, 0), 2000, 30)}, harness.Container{Command: strings.Fields(spin)})
		spinners = append(spinners, id)
	}
	n.Agent.Kill()
	for _, l := range lessees {
		wait(t, l.pod, "ready", "1")
	}
	require.NoError(t, n.StartAgent(context.Background()))
	for i := range 4 {
		grants(t, n, fmt.Sprint("new", i))
		greedy, id := run(t, n, harness.Pod{Name: fmt.Sprint("greedy", i)}, harness.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}})
		spec, err := n.Spec(context.Background(), id)
		require.NoError(t, err)
		require.Contains(t, spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=void")
		require.NoError(t, greedy.Remove(context.Background()))
	}
	waitMeasured(t, at, len(spinners))
	for _, l := range lessees {
		_, err := n.WaitExit(context.Background(), l.id, patience)
		require.NoError(t, err, "its process is ended")
	}
	tampered(t, at, 0)
	require.NoError(t, harness.Until(context.Background(), 2*patience, func(context.Context) error {
		info, err := os.Stat(limiter.UsagePath(claimDir(n, lessees[3].id)))
		if err == nil && info.Size() > 2<<20 {
			err = fmt.Errorf("the usage file has %d bytes", info.Size())
		}
		return err
	}))
	require.NoError(t, n.Health(context.Background(), "/healthz"))
}

// A container of docker's locks its limits, or holds a lease on them where no agent holds
// them open, and the operator resizes it. The command hung and kept the ledger.
func TestOperatorsResizeOfALockedContainerEnds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	m, err := harness.NewMachine(ctx, "H200")
	t.Cleanup(func() {
		if m != nil {
			require.NoError(t, m.Close())
		}
	})
	require.NoError(t, err)
	require.NoError(t, m.WriteRuntimeConfig(""))
	d, err := harness.NewDockerd(ctx, m, harness.DockerdOptions{})
	t.Cleanup(func() { require.NoError(t, d.Close(ctx)) })
	require.NoError(t, err)
	start := func(command ...string) string {
		out, err := d.Docker(ctx, append([]string{"run", "--detach", "--network", "none", "--runtime", "gpuslice", "-e", "GPUSLICE_MEMORY=1000MiB", "-e", "GPUSLICE_CORES=10", harness.WorkloadImage}, command...)...)
		require.NoError(t, err)
		return strings.TrimSpace(out)
	}
	resize := func(id string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return m.CLI(ctx, "resize", id, "--memory", "2000MiB")
	}
	for attack, refused := range map[string]bool{"flock": false, "read-lease": true, "write-lease": true} {
		id := start(workload("attack"), attack, "/.gpuslice/limits")
		until(t, func(ctx context.Context) error {
			out, err := d.Docker(ctx, "logs", id)
			if err == nil && harness.KeyValues(out)["ready"] != "1" {
				err = fmt.Errorf("the attack is not in place: %s", out)
			}
			return err
		})
		_, err := resize(id)
		if refused {
			require.ErrorContains(t, err, "a process of the container holds a lease on it", attack)
		} else {
			require.NoError(t, err, attack)
		}
		next := start(workload("hold"))
		_, err = resize(next)
		require.NoError(t, err, "the ledger is free")
	}
}
