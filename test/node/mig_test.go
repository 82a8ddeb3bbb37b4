//go:build root

package node_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/test/harness"
)

// allocatePlace makes a ResourceClaim of a place on the second GPU, an A100-80GB, as kube-scheduler allocates it.
func (c *claims) allocatePlace(name, place string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byName[name] = &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: "gpu.gpuslice.io", Pool: harness.NodeName + "/a100-sxm4-80gb", Device: "gpu-00000002-5151-4000-8000-000000000002-mig-" + place,
		}}}}},
	}
}

// newMIGNode is a node of which the agent makes MIG devices on request, beside one of an administrator.
func newMIGNode(t *testing.T) (n *harness.Node, c *claims, foreign map[string]string) {
	ctx := context.Background()
	c = newClaims(t)
	n = newNode(t, harness.NodeOptions{GPUs: []string{"H200", "A100-80GB:mig=2g.20gb:4"}, MIG: []int{1}, NoAgent: true})
	n.SetAgentArgs(append(c.args(n), "--mig-strategy=mixed", "--mig-on-request")...)
	require.NoError(t, n.StartAgent(ctx))
	c.n = n
	foreign, err := n.MIGDevices(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"2g.20gb"}, slices.Collect(maps.Values(foreign)))
	return n, c, foreign
}

// requireMIG checks which MIG devices the driver has.
func requireMIG(t *testing.T, n *harness.Node, want map[string]string) {
	t.Helper()
	made, err := n.MIGDevices(context.Background())
	require.NoError(t, err)
	require.Equal(t, want, made)
}

// waitMIG waits until the driver has only these.
func waitMIG(t *testing.T, n *harness.Node, want map[string]string) {
	t.Helper()
	require.NoError(t, harness.Until(context.Background(), time.Minute, func(ctx context.Context) error {
		made, err := n.MIGDevices(ctx)
		if err == nil && !maps.Equal(made, want) {
			err = fmt.Errorf("the driver has the MIG devices %v", made)
		}
		return err
	}))
}

// hasMIG checks that CUDA and NVML in a container have one device, a MIG device of the profile, and returns its UUID.
func hasMIG(t *testing.T, n *harness.Node, id, profile string, memoryMiB int64) string {
	t.Helper()
	v := exec(t, n, id, workload("meminfo"))
	require.Equal(t, "1", v["device_count"])
	require.Equal(t, memoryMiB*mib, number(t, v["device.0.total_bytes"]))
	require.Equal(t, "1", v["nvml.device_count"])
	require.Equal(t, "1", v["nvml.0.mig_count"])
	require.Regexp(t, " MIG "+profile+"$", v["nvml.0.mig.0.name"])
	require.Equal(t, memoryMiB*mib, number(t, v["nvml.0.mig.0.total_bytes"]))
	return v["nvml.0.mig.0.uuid"]
}

// A MIG device is made when its ResourceClaim is prepared, and destroyed when that ends, also by the next agent; the containers of the claim
// have it, and nothing else. An administrator's stays.
func TestMIGDeviceOnRequest(t *testing.T) {
	ctx := context.Background()
	n, c, foreign := newMIGNode(t)
	c.allocatePlace("a", "3g-40gb-0")
	devices := c.prepared("a")
	pod := run(t, n, harness.Pod{Name: "a"})
	id := start(t, pod, harness.Container{Name: "main", CDIDevices: devices})
	all := maps.Clone(foreign)
	made := hasMIG(t, n, id, "3g.40gb", 40192)
	all[made] = "3g.40gb"
	require.Len(t, all, 2)
	requireMIG(t, n, all)

	// The agent is killed, and an administrator makes another MIG device meanwhile. The next agent gives the claim's to the next container.
	n.Agent.Kill()
	require.NoError(t, n.CreateMIG(ctx, 1, "1g.10gb:6"))
	both, err := n.MIGDevices(ctx)
	require.NoError(t, err)
	require.Len(t, both, 3)
	require.NoError(t, n.StartAgent(ctx))
	require.Equal(t, made, hasMIG(t, n, id, "3g.40gb", 40192))
	require.NoError(t, n.RemoveContainer(ctx, id))
	id = start(t, pod, harness.Container{Name: "main", Attempt: 1, CDIDevices: c.prepared("a")})
	require.Equal(t, made, hasMIG(t, n, id, "3g.40gb", 40192))
	requireMIG(t, n, both)

	// The pod ends while there is no agent.
	n.Agent.Kill()
	require.NoError(t, pod.Remove(ctx))
	requireMIG(t, n, both)
	require.NoError(t, n.StartAgent(ctx))
	require.Equal(t, devices, c.prepared("a"), "until the driver is there")
	c.unprepare("a")
	delete(both, made)
	waitMIG(t, n, both)

	// While a container has it, it is not destroyed: its pod was deleted by force.
	c.allocatePlace("b", "1g-10gb-0")
	devices = c.prepared("b")
	pod = run(t, n, harness.Pod{Name: "b"})
	id = start(t, pod, harness.Container{Name: "main", CDIDevices: devices})
	made = hasMIG(t, n, id, "1g.10gb", 9728)
	c.unprepare("b")
	all = maps.Clone(both)
	all[made] = "1g.10gb"
	requireMIG(t, n, all)
	require.Equal(t, made, hasMIG(t, n, id, "1g.10gb", 9728))
	require.NoError(t, pod.Remove(ctx))
	waitMIG(t, n, both)
	requireNothingLeft(t, n)
}
