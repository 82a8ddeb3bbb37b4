//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// migGPU is the GPU in MIG mode: an A100-80GB.
const migGPU = 7

// migProfile is what the claims of this test have, and migMiB its memory.
const (
	migProfile = "3g.40gb"
	migMiB     = 40192
)

// withMIGOnRequest switches the node to DRA until the test ends, with MIG devices on request, and the webhook to ResourceClaims in a
// namespace.
func withMIGOnRequest(t *testing.T, namespace string) {
	ctx := context.Background()
	restoreChart(t)
	simctl := func(args ...string) {
		_, err := cluster.Simctl(ctx, append([]string{"mig", strconv.Itoa(migGPU)}, args...)...)
		require.NoError(t, err)
	}
	shares := len(gpus(t)) - 1
	t.Cleanup(func() { simctl("disable") }) // with all MIG devices
	simctl("enable")
	require.NoError(t, cluster.CreateMIG(ctx, migGPU, "2g.20gb:4"))
	installDRA(t, func(devices []resourceapi.Device) error {
		offered := map[string]int{}
		for _, d := range devices {
			if kind := *d.Attributes["type"].StringValue; kind == "gpu" {
				offered[kind]++
			} else {
				offered[*d.Attributes["profile"].StringValue]++
			}
		}
		if offered["gpu"] != shares || offered[migProfile] != 1 {
			return fmt.Errorf("the devices are %v", offered)
		}
		return nil
	}, "--set=dra.claimNamespaces={"+namespace+"}", "--set=agent.config.mig-strategy=mixed", "--set=agent.config.mig-on-request=true")
	require.NoError(t, cluster.WaitWebhook(ctx))
	require.NoError(t, cluster.ShowCapabilities(ctx, migGPU))
}

func requireMIG(t *testing.T, want map[string]string) {
	t.Helper()
	made, err := cluster.MIGDevices(context.Background())
	require.NoError(t, err)
	require.Equal(t, want, made)
}

// waitMIG waits until the driver has no other MIG devices than these.
func waitMIG(t *testing.T, want map[string]string) {
	t.Helper()
	require.NoError(t, harness.Until(context.Background(), patience, func(ctx context.Context) error {
		made, err := cluster.MIGDevices(ctx)
		if err == nil && !maps.Equal(made, want) {
			err = fmt.Errorf("the driver has the MIG devices %v", made)
		}
		return err
	}))
}

// claimMIG makes a ResourceClaim of a profile as the tenant.
func (s *space) claimMIG(name, profile string) {
	selector := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(`device.attributes["gpu.gpuslice.io"].profile == %q`, profile)}}
	_, err := s.tenant.ResourceV1().ResourceClaims(s.name).Create(context.Background(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "mig.gpuslice.io", Selectors: []resourceapi.DeviceSelector{selector},
		}}}}},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// hasMIG checks that CUDA and NVML in a container have one device, and that this is a MIG device of the profile. It returns the UUID.
func (s *space) hasMIG(p *corev1.Pod, profile string, memoryMiB int64) string {
	s.t.Helper()
	stdout, stderr, code, err := execIn(p, "main", workload("meminfo"))
	require.NoError(s.t, err)
	require.Zero(s.t, code, "%s%s", stdout, stderr)
	v := harness.KeyValues(stdout)
	require.Equal(s.t, "1", v["device_count"], stdout)
	require.Equal(s.t, memoryMiB, number(s.t, v["device.0.total_bytes"])/mib)
	require.Equal(s.t, "1", v["nvml.device_count"], stdout)
	require.Equal(s.t, "1", v["nvml.0.mig_count"], stdout)
	require.True(s.t, strings.HasSuffix(v["nvml.0.mig.0.name"], " MIG "+profile), v["nvml.0.mig.0.name"])
	require.Equal(s.t, memoryMiB, number(s.t, v["nvml.0.mig.0.total_bytes"])/mib)
	allocated := s.allocatable(p, "main")
	require.Less(s.t, allocated, memoryMiB)
	require.Greater(s.t, allocated, memoryMiB*9/10)
	return v["nvml.0.mig.0.uuid"]
}

// runMIG runs a pod of which the MIG device is made, beside those that there are.
func (s *space) runMIG(p *corev1.Pod, profile string, memoryMiB int64, others map[string]string) (running *corev1.Pod, all map[string]string) {
	s.t.Helper()
	running = s.run(p)
	all = maps.Clone(others)
	all[s.hasMIG(running, profile, memoryMiB)] = profile
	require.Len(s.t, all, len(others)+1)
	requireMIG(s.t, all)
	return running, all
}

// agentKilled kills the agent, without waiting for the next one.
func agentKilled(t *testing.T) {
	agents, err := cluster.PodsOf(context.Background(), "agent")
	require.NoError(t, err)
	require.Len(t, agents, 1)
	require.NoError(t, harness.KillContainer(cluster.Containerd, strings.TrimPrefix(agents[0].Status.ContainerStatuses[0].ContainerID, "containerd://")))
}

// restarted waits until all containers of a pod were started once more.
func restarted(before *corev1.Pod) func(*corev1.Pod) error {
	return func(p *corev1.Pod) error {
		for i, s := range p.Status.ContainerStatuses {
			if s.RestartCount == before.Status.ContainerStatuses[i].RestartCount {
				return fmt.Errorf("container %s was not started again", s.Name)
			}
		}
		return kube.Running(p)
	}
}

// A MIG device is made for a ResourceClaim, and destroyed after its last pod, also when the agent is killed meanwhile. What an administrator
// made stays. HAMi's names become ResourceClaims: of a share, and of the smallest MIG device that is enough.
func TestResourceClaimsOfMIGDevices(t *testing.T) {
	ctx := context.Background()
	if !has(t, kube.DRA) {
		require.ErrorContains(t, cluster.InstallChart(ctx, "--set=dra.enabled=true", "--set=agent.config.mig-strategy=mixed", "--set=agent.config.mig-on-request=true"), "Upgrade to 1.36")
		return
	}
	s := newSpace(t)
	withMIGOnRequest(t, s.name)
	t.Cleanup(s.empty)
	foreign, err := cluster.MIGDevices(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"2g.20gb"}, slices.Collect(maps.Values(foreign)))

	s.claimMIG("mig", migProfile)
	claimed := func(name string) *corev1.Pod {
		return claiming(pod(name, container("main", nil)), byClaim("mig"))
	}
	p, _ := s.runMIG(claimed("first"), migProfile, migMiB, foreign)
	claim, err := cluster.API.ResourceV1().ResourceClaims(s.name).Get(ctx, "mig", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, claim.Status.Devices, 1)
	require.Equal(t, metav1.ConditionTrue, claim.Status.Devices[0].Conditions[0].Status)
	require.Contains(t, string(claim.Status.Devices[0].Data.Raw), `"MIG-`)
	s.delete(p.Name)
	waitMIG(t, foreign)

	// The agent is killed, twice: while the pod runs, and when it ends. Meanwhile an administrator makes another MIG device, which is larger than
	// what HAMi's names get below.
	p, all := s.runMIG(claimed("second"), migProfile, migMiB, foreign)
	require.NoError(t, cluster.CreateMIG(ctx, migGPU, "1g.20gb:6"))
	both, err := cluster.MIGDevices(ctx)
	require.NoError(t, err)
	require.NoError(t, cluster.RestartAgent(ctx))
	require.NoError(t, cluster.ShowCapabilities(ctx, migGPU))
	requireMIG(t, both)
	require.Contains(t, all, s.hasMIG(p, migProfile, migMiB))
	require.NoError(t, harness.KillContainer(cluster.Containerd, strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")))
	p = s.wait(p.Name, restarted(p))
	made := s.hasMIG(p, migProfile, migMiB)
	require.Contains(t, all, made)
	requireMIG(t, both)
	agentKilled(t)
	s.delete(p.Name)
	foreign = maps.Clone(both)
	delete(foreign, made)
	waitMIG(t, foreign)
	require.NoError(t, cluster.WaitRelease(ctx))
	require.NoError(t, cluster.ShowCapabilities(ctx, migGPU))

	// HAMi's names: the share of a GPU, and the smallest MIG device, while the agent's pod is replaced.
	share := s.run(pod("share", container("main", gpu(2000, 10))))
	require.Len(t, share.Spec.ResourceClaims, 1)
	require.Empty(t, share.Spec.Containers[0].Resources.Limits)
	s.requireHeld(share, "main", 2000)
	small := pod("small", container("main", resources{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5000"}))
	small.Annotations = map[string]string{"nvidia.com/vgpu-mode": "mig"}
	p, all = s.runMIG(small, "1g.10gb", 9728, foreign)
	require.Len(t, p.Spec.ResourceClaims, 1)
	agents, err := cluster.PodsOf(ctx, "agent")
	require.NoError(t, err)
	require.NoError(t, cluster.API.CoreV1().Pods(kube.Namespace).Delete(ctx, agents[0].Name, metav1.DeleteOptions{}))
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		now, err := cluster.PodsOf(ctx, "agent")
		if err == nil && (len(now) != 1 || now[0].UID == agents[0].UID) {
			err = errors.New("the agent's pod was not replaced")
		}
		return err
	}))
	require.NoError(t, cluster.WaitRelease(ctx))
	requireMIG(t, all)
	require.Contains(t, all, s.hasMIG(p, "1g.10gb", 9728))
	s.requireHeld(share, "main", 2000)
	s.empty()
	waitMIG(t, foreign)
	assert.NoError(t, unused(ctx))
}
