//go:build e2e && nodes

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// secondGPUs are its GPUs, which have other UUIDs than those of the first: two for shares, and one in MIG mode.
var secondGPUs = []string{
	"H200:uuid=GPU-000000b1-5151-4000-8000-0000000000b1", "H200:uuid=GPU-000000b2-5151-4000-8000-0000000000b2",
	"A100-40GB:uuid=GPU-000000b3-5151-4000-8000-0000000000b3,mig=1g.5gb,mig=1g.5gb,mig=3g.20gb",
}

// withSecondNode adds the node until the test ends, and returns its GPUs for shares, and the MiB of its MIG devices.
func withSecondNode(t *testing.T) (gpus []string, mig map[string]int64) {
	ctx := context.Background()
	t.Cleanup(func() {
		if t.Failed() {
			saveLogs() // those of the node go with it
		}
		second = nil
		require.NoError(t, cluster.RemoveNode(context.Background()))
	})
	n, err := cluster.AddNode(ctx, secondGPUs...)
	require.NoError(t, err)
	second = n
	for _, gpu := range secondGPUs[:2] {
		_, uuid, _ := strings.Cut(gpu, "uuid=")
		gpus = append(gpus, uuid)
	}
	list, err := second.Simctl(ctx, "mig", "2", "list")
	require.NoError(t, err)
	mig = map[string]int64{}
	for line := range strings.Lines(list) {
		if columns := strings.Fields(line); strings.HasPrefix(columns[1], "MIG-") {
			mig[columns[1]] = number(t, columns[len(columns)-1])
		}
	}
	more, err := capacities(second)
	require.NoError(t, err)
	followed.extend(more)
	return gpus, mig
}

// Shares, groups, health and MIG devices of a cluster with two nodes, each with a kubelet, a containerd and an agent.
func TestSecondNode(t *testing.T) {
	ctx := context.Background()
	first := gpus(t)
	gpus, mig := withSecondNode(t)
	require.Len(t, mig, 3)
	require.NoError(t, second.WaitOffered(ctx, "nvidia.com/gpu", 20))
	s := newSpace(t)

	t.Run("group", func(t *testing.T) { s.in(t).groupOnTwoNodes(append([]string{first[7]}, gpus...)) })
	t.Run("XID", func(t *testing.T) { s.in(t).unhealthy(gpus) })
	t.Run("policies", func(t *testing.T) { s.in(t).nodePolicies() })
	t.Run("MIG", func(t *testing.T) { s.in(t).migDevices(mig) })
	t.Run("drain", func(t *testing.T) { s.in(t).drain() })
	t.Run("no label", func(t *testing.T) { s.in(t).withoutLabel() })
}

// groupOnTwoNodes: a group of whole GPUs gets those of two nodes, and the next one gets none while it can't have all.
func (s *space) groupOnTwoNodes(gpus []string) {
	member := func(group string, i, minimum int) *corev1.Pod {
		p := pod(fmt.Sprintf("%s-%d", group, i), container("main", resources{"nvidia.com/gpu": "1"}))
		p.Labels["scheduling.x-k8s.io/pod-group"] = group
		p.Annotations = map[string]string{"gpuslice.io/pod-group-min": fmt.Sprint(minimum), "nvidia.com/use-gpuuuid": strings.Join(gpus, ",")}
		return p
	}
	has, nodes := map[string]bool{}, map[string]bool{}
	for i := range 2 {
		s.create(member("first", i, 2))
	}
	for i := range 2 {
		p := s.wait(fmt.Sprintf("first-%d", i), kube.Running)
		devices := s.devices(p, "main")
		require.Len(s.t, devices, 1)
		has[devices[0].uuid], nodes[p.Spec.NodeName] = true, true
	}
	require.Len(s.t, has, 2)
	// There is room for one of them.
	for i := range 2 {
		s.create(member("second", i, 2))
	}
	for i := range 2 {
		came, p, says := s.cameOf(fmt.Sprintf("second-%d", i))
		require.Equal(s.t, unscheduled, came, says)
		require.Empty(s.t, p.Spec.NodeName)
	}
	s.delete("first-0")
	s.delete("first-1")
	for i := range 2 {
		s.wait(fmt.Sprintf("second-%d", i), kube.Running)
	}
	s.empty()
	// Only both nodes together have three.
	for i := range 3 {
		s.create(member("third", i, 3))
	}
	nodes = map[string]bool{}
	for i := range 3 {
		nodes[s.wait(fmt.Sprintf("third-%d", i), kube.Running).Spec.NodeName] = true
	}
	require.Len(s.t, nodes, 2)
	s.empty()
}

// unhealthy: a GPU with an XID gets no pod until it is healthy, and keeps those that it has.
func (s *space) unhealthy(gpus []string) {
	ctx := context.Background()
	anyOf := func(name string, uuids ...string) *corev1.Pod {
		p := pod(name, container("main", gpu(1000, 10)))
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": strings.Join(uuids, ",")}
		return p
	}
	running := s.run(anyOf("before", gpus[0]))
	_, err := second.Simctl(ctx, "xid", gpus[0], "94")
	require.NoError(s.t, err)
	require.NoError(s.t, harness.Until(ctx, patience, func(ctx context.Context) error {
		node, err := cluster.API.CoreV1().Nodes().Get(ctx, kube.SecondNode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if offered := node.Status.Allocatable["nvidia.com/gpu"]; offered.Value() != 10 {
			return fmt.Errorf("the node offers %s", offered.String())
		}
		if !strings.Contains(node.Annotations["gpuslice.io/node-gpus"], `"healthy":false`) {
			return errors.New("schedulers do not know it")
		}
		return nil
	}))
	s.create(anyOf("insists", gpus[0]))
	came, _, says := s.cameOf("insists")
	require.Equal(s.t, unscheduled, came, says)
	out, err := kubectlGPUSlice(s.t, "explain", s.name+"/insists")
	require.NoError(s.t, err, out)
	require.Contains(s.t, out, "1 not healthy")
	require.Equal(s.t, gpus[1], s.devices(s.run(anyOf("takes-the-other", gpus...)), "main")[0].uuid)
	require.Equal(s.t, gpus[0], s.devices(s.wait(running.Name, kube.Running), "main")[0].uuid, "it runs on")
	// A new agent does not know the XID. Without that it takes a minute.
	agents, err := cluster.PodsOf(ctx, "agent")
	require.NoError(s.t, err)
	for _, p := range agents {
		if p.Spec.NodeName == kube.SecondNode {
			require.NoError(s.t, cluster.API.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
		}
	}
	require.NoError(s.t, second.WaitOffered(ctx, "nvidia.com/gpu", 20))
	require.Equal(s.t, gpus[0], s.devices(s.wait("insists", kube.Running), "main")[0].uuid)
	s.empty()
}

// migDevices: pods have a MIG device each, which the kubelet assigns; one with an XID is assigned to none.
func (s *space) migDevices(memory map[string]int64) {
	ctx := context.Background()
	small := resources{"nvidia.com/mig-1g.5gb": "1"}
	has := map[string]bool{}
	for i := range 2 {
		d := s.migDevice(s.run(pod(fmt.Sprintf("small-%d", i), container("main", small))))
		require.Equal(s.t, memory[d.uuid], d.totalMiB)
		has[d.uuid] = true
	}
	require.Len(s.t, has, 2, "a device for each")
	s.create(pod("third", container("main", small)))
	came, _, says := s.cameOf("third")
	require.Equal(s.t, unscheduled, came)
	require.Contains(s.t, says, "Insufficient nvidia.com/mig-1g.5gb")

	large := s.run(pod("large", container("main", resources{"nvidia.com/mig-3g.20gb": "1"})))
	d := s.migDevice(large)
	require.False(s.t, has[d.uuid])
	require.Equal(s.t, memory[d.uuid], d.totalMiB)

	failed := slices.Sorted(maps.Keys(has))[0]
	_, err := second.Simctl(ctx, "xid", failed, "94")
	require.NoError(s.t, err)
	require.NoError(s.t, harness.Until(ctx, patience, func(ctx context.Context) error {
		node, err := cluster.API.CoreV1().Nodes().Get(ctx, kube.SecondNode, metav1.GetOptions{})
		if offered := node.Status.Allocatable["nvidia.com/mig-1g.5gb"]; err == nil && offered.Value() != 1 {
			err = fmt.Errorf("the node offers %s", offered.String())
		}
		return err
	}))
	for i := range 2 {
		s.delete(fmt.Sprintf("small-%d", i))
	}
	require.NotEqual(s.t, failed, s.migDevice(s.wait("third", kube.Running)).uuid)
	s.empty()
}

// migDevice is the only device that a pod's container has: its UUID by the node's ledger, its memory by CUDA in the
// container.
func (s *space) migDevice(p *corev1.Pod) device {
	stdout, stderr, code, err := execIn(p, "main", workload("meminfo"))
	require.NoError(s.t, err)
	require.Zero(s.t, code, "%s%s", stdout, stderr)
	v := harness.KeyValues(stdout)
	require.Equal(s.t, "1", v["device_count"], stdout)
	status, err := second.Status(context.Background())
	require.NoError(s.t, err)
	d := device{totalMiB: number(s.t, v["device.0.total_bytes"]) / mib}
	for _, c := range status.Containers {
		if c.Pod == p.Namespace+"/"+p.Name {
			require.Len(s.t, c.Shares, 1)
			d.uuid = c.Shares[0].UUID
		}
	}
	require.Regexp(s.t, "^MIG-", d.uuid)
	return d
}

// nodePolicies: binpack and spread compare the share of all GPUs of a node that is used with the pod.
func (s *space) nodePolicies() {
	onNode := func(name, policy, node string) {
		p := pod(name, container("main", gpu(30000, 10)))
		p.Annotations = map[string]string{"hami.io/node-scheduler-policy": policy}
		p = s.run(p)
		require.Equal(s.t, node, p.Spec.NodeName, name)
		s.requireHeld(p, "main", 30000)
	}
	// Of two empty nodes the pod uses a larger share of the one with two GPUs.
	onNode("binpack-empty", "binpack", kube.SecondNode)
	s.empty()
	onNode("spread-empty", "spread", harness.NodeName)
	s.empty()
	require.Equal(s.t, harness.NodeName, s.run(pod("four", container("main", resources{"nvidia.com/gpu": "4"}))).Spec.NodeName)
	onNode("binpack", "binpack", harness.NodeName)
	onNode("spread", "spread", kube.SecondNode)
	s.empty()
}

// drain: what a controller has on a node that is drained gets its share on the other one.
func (s *space) drain() {
	ctx := context.Background()
	s.deploy(2, pod("app", container("main", gpu(20000, 10))))
	for _, p := range s.waitRunning("app", 2) {
		require.Equal(s.t, kube.SecondNode, p.Spec.NodeName, "binpack prefers the small node")
	}
	_, err := cluster.Kubectl(ctx, "drain", kube.SecondNode, "--ignore-daemonsets", "--pod-selector=app=app")
	require.NoError(s.t, err)
	for _, p := range s.waitRunning("app", 2) {
		require.Equal(s.t, harness.NodeName, p.Spec.NodeName)
		s.requireHeld(&p, "main", 20000)
	}
	_, err = cluster.Kubectl(ctx, "uncordon", kube.SecondNode)
	require.NoError(s.t, err)
	s.empty()
}

// withoutLabel: a node without the label of nodes with a GPU has no agent, the agents' rollout is complete, and pods with GPUs are
// placed on the other node.
func (s *space) withoutLabel() {
	ctx := context.Background()
	_, err := cluster.API.CoreV1().Nodes().Patch(ctx, kube.SecondNode, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, api.LabelHasGPU), metav1.PatchOptions{})
	require.NoError(s.t, err)
	require.NoError(s.t, harness.Until(ctx, patience, func(ctx context.Context) error {
		agents, err := cluster.PodsOf(ctx, "agent")
		if err == nil && (len(agents) != 1 || agents[0].Spec.NodeName != harness.NodeName) {
			err = fmt.Errorf("there are %d agents", len(agents))
		}
		return err
	}))
	out, err := cluster.Kubectl(ctx, "--namespace="+kube.Namespace, "rollout", "status", "daemonset/"+kube.AgentName, "--timeout=2m")
	require.NoError(s.t, err, out)
	requireAgent(s.t)

	on := func(name string, r resources) *corev1.Pod {
		p := pod(name, container("main", r))
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: kube.SecondNode}
		return p
	}
	s.run(on("plain", resources{}))
	s.create(on("gpu", gpu(2000, 10)))
	came, _, says := s.cameOf("gpu")
	require.Equal(s.t, unscheduled, came, says)
	p := s.run(pod("anywhere", container("main", gpu(2000, 10))))
	require.Equal(s.t, harness.NodeName, p.Spec.NodeName)
	s.requireHeld(p, "main", 2000)
	s.empty()
}
