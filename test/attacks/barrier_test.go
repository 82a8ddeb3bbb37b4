//go:build attacks

package attacks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// agentNamespace is exempt on the nodes of these tests, as the chart's namespace is.
const agentNamespace = "gpuslice-system"

// noDevice is the exit status of the workload meminfo where it finds no driver.
const noDevice = 4

// newNvidiaNode starts a node with a runtime handler "nvidia", with gpuslice-runtime in front of NVIDIA's own
// runtime, as `gpuslice install containerd` configures it. The handler "bare" is NVIDIA's runtime without it.
func newNvidiaNode(t testing.TB, c harness.NvidiaConfig, agentArgs ...string) *harness.Node {
	wrapper, err := harness.Wrapper()
	require.NoError(t, err)
	nvidia, err := harness.NvidiaRuntime()
	require.NoError(t, err)
	n := newNode(t, harness.NodeOptions{
		Containerd: harness.ContainerdOptions{Runtimes: map[string]string{"nvidia": wrapper, "bare": nvidia}},
		AgentArgs:  append([]string{"--nvidia-runtime-handlers=nvidia,bare"}, agentArgs...),
	})
	require.NoError(t, n.WriteNvidiaConfig(c))
	require.NoError(t, n.WriteRuntimeConfig(fmt.Sprintf("nvidiaRuntime: %s\nexemptNamespaces: [%s]\n", nvidia, agentNamespace)))
	return n
}

// requestMount asks NVIDIA's runtime for a GPU by a volume mount.
func requestMount(name string) []*cri.Mount {
	return []*cri.Mount{{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/" + name}}
}

// seesGPU reports whether a new container of a pod sees a GPU. A container that is refused does not.
func seesGPU(t testing.TB, n *harness.Node, s *harness.Sandbox, c harness.Container) bool {
	t.Helper()
	ctx := context.Background()
	id, err := s.Create(ctx, c)
	if err != nil {
		return false
	}
	defer func() { require.NoError(t, n.RemoveContainer(ctx, id)) }()
	if err := n.StartContainer(ctx, id); err != nil {
		return false
	}
	stdout, stderr, code, err := n.Exec(ctx, id, workload("meminfo"))
	require.NoError(t, err)
	require.Contains(t, []int{0, noDevice}, code, "%s%s", stdout, stderr)
	return code == 0
}

// A pod of the RuntimeClass "nvidia" without a grant asks NVIDIA's runtime for all GPUs in
// each way that there is, while the agent is stopped, killed, frozen, or attacked by a
// lease. It needs no agent to be kept from them, and the agent's own pod still gets its GPU.
func TestGPUStaysClosedWhileTheAgentIsAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	n := newNvidiaNode(t, harness.NvidiaConfig{AcceptMounts: true})
	uuid := gpu(t, n, 0)
	greedy := harness.Container{Name: "main", Image: harness.GreedyImage}
	ways := []harness.Container{
		greedy,
		{Name: "main", Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}},
		{Name: "main", Env: []string{"NVIDIA_VISIBLE_DEVICES=" + uuid}, User: 1000},
		{Name: "main", Env: []string{"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"}},
		{Name: "main", Image: harness.TwiceImage},
		{Name: "main", Env: []string{"DOCKER_RESOURCE_GPU=all"}},
		{Name: "main", Env: []string{"CUDA_VERSION=8.0"}},
		{Name: "main", Env: []string{"GPUSLICE_MEMORY=8GiB", "GPUSLICE_CORES=50"}},
		{Name: "main", Mounts: requestMount("all")},
		{Name: "main", Mounts: requestMount("cdi/nvidia.com/gpu/all")},
	}
	tenant, err := n.RunPod(ctx, harness.Pod{Name: "tenant", Handler: "nvidia"})
	require.NoError(t, err)
	agent, err := n.RunPod(ctx, harness.Pod{Name: "agent", Namespace: agentNamespace, Handler: "nvidia"})
	require.NoError(t, err)
	bare, err := n.RunPod(ctx, harness.Pod{Name: "bare", Handler: "bare"})
	require.NoError(t, err)

	for _, c := range ways {
		require.False(t, seesGPU(t, n, tenant, c), "the agent is connected: %+v", c)
	}
	_, id := run(t, n, harness.Pod{Name: "granted", Handler: "nvidia", Annotations: granted(uuid, 3000, 10)}, harness.Container{Image: harness.GreedyImage})
	require.Equal(t, strconv.Itoa(3000*mib), exec(t, n, id, workload("meminfo"))["device.0.total_bytes"])

	away := map[string]func(){
		"stopped": func() { require.NoError(t, n.Agent.Stop(patience)) },
		"killed":  func() { n.Agent.Kill() },
		"frozen":  func() { require.NoError(t, n.Agent.Suspend(t.Context())) },
		"attacked by a lease": func() {
			c := harness.Container{Name: "main", Command: []string{workload("attack"), "write-lease", "/.gpuslice/limits"}}
			attacker, _ := run(t, n, harness.Pod{Name: "attacker", Annotations: granted(uuid, 1000, 10)}, c)
			until(t, func(context.Context) error {
				log, err := attacker.Logs(c)
				if err == nil && log == "" {
					err = errors.New("the attack has neither succeeded nor failed yet")
				}
				return err // the agent's own descriptor may keep the lease from being taken
			})
			n.Agent.Kill()
			require.NoError(t, n.LaunchAgent())
		},
	}
	tries := 0
	for _, state := range []string{"stopped", "killed", "frozen", "attacked by a lease"} {
		away[state]()
		for i := range 25 {
			c := ways[i%len(ways)]
			require.False(t, seesGPU(t, n, tenant, c), "the agent is %s: %+v", state, c)
			tries++
		}
		if state == "stopped" || state == "killed" {
			require.True(t, seesGPU(t, n, bare, greedy), "without the barrier NVIDIA's runtime gives a GPU: else this test proves nothing")
			require.True(t, seesGPU(t, n, agent, greedy), "the agent's own pod, while no agent is connected")
		}
		n.Agent.Kill()
		if state != "attacked by a lease" {
			require.NoError(t, n.StartAgent(ctx))
		}
	}
	require.Equal(t, 100, tries)
}

// Pods can't claim to be of the agent's namespace.
func TestTenantCanNotImitateTheAgentsNamespace(t *testing.T) {
	t.Parallel()
	n := newNvidiaNode(t, harness.NvidiaConfig{})
	require.NoError(t, n.Agent.Stop(patience))
	says := map[string]string{
		"io.kubernetes.cri.sandbox-namespace": agentNamespace, "io.kubernetes.cri.container-type": "container",
		"gpuslice.io/tolerate-missing-plugins": "true",
	}
	s, err := n.RunPod(context.Background(), harness.Pod{Name: agentNamespace, Handler: "nvidia", Annotations: says})
	require.NoError(t, err)
	require.False(t, seesGPU(t, n, s, harness.Container{Name: agentNamespace, Image: harness.GreedyImage, Annotations: says}))
	privileged := harness.Container{Name: "main", Image: harness.GreedyImage, Privileged: true}
	require.False(t, seesGPU(t, n, s, privileged))
}

// Where NVIDIA's runtime ignores the variables of unprivileged containers, a pod with a
// grant and the agent's own pod ask for their GPUs by volume mounts.
func TestSharesWhereNvidiaIgnoresVariables(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	n := newNvidiaNode(t, harness.NvidiaConfig{IgnoreVariables: true, AcceptMounts: true}, "--device-injection=envvar")
	uuid := gpu(t, n, 0)
	for i, handler := range []string{"nvidia", "bare"} {
		_, id := run(t, n, harness.Pod{Name: "granted-" + handler, Handler: handler, Annotations: granted(uuid, 3000, 10)}, harness.Container{User: int64(1000 * i), ReadOnly: true})
		require.Equal(t, strconv.Itoa(3000*mib), exec(t, n, id, workload("meminfo"))["device.0.total_bytes"], handler)
		v := exec(t, n, id, workload("alloc"), "--chunk-mib=1")
		require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], handler)
		require.Equal(t, strconv.Itoa((3000-contextMiB)*mib), v["allocated_bytes"], handler)
	}
	tenant, err := n.RunPod(ctx, harness.Pod{Name: "tenant", Handler: "bare"})
	require.NoError(t, err)
	require.False(t, seesGPU(t, n, tenant, harness.Container{Name: "main", Mounts: requestMount(uuid)}), "the agent refuses the mount")
	require.NoError(t, n.Agent.Stop(patience))
	require.False(t, seesGPU(t, n, tenant, harness.Container{Name: "main", Image: harness.GreedyImage}), "NVIDIA's runtime ignores the variable")
	agent, err := n.RunPod(ctx, harness.Pod{Name: "agent", Namespace: agentNamespace, Handler: "nvidia"})
	require.NoError(t, err)
	require.True(t, seesGPU(t, n, agent, harness.Container{Name: "agent", Mounts: requestMount("all"), ReadOnly: true}), "the agent asks as the chart has it")
}
