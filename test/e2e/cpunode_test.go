//go:build e2e && nodes

package e2e_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// toFirstSlice is how many commands the quick start may need for a pod with a part of a GPU.
const toFirstSlice = 4

// untilSlice are the blocks of the quick start that are needed for the first pod with a GPU, and the others.
func untilSlice(blocks []pages.Block) (first, others []pages.Block) {
	for _, b := range blocks {
		if b.Section == "2. Install" || strings.HasPrefix(b.Commands[0].Text, "kubectl apply ") {
			first = append(first, b)
		} else {
			others = append(others, b)
		}
	}
	return first, others
}

// In a cluster with a node without GPUs and without a driver, the quick start's first commands give a pod with a part of a GPU,
// and all that was installed is ready: no agent waits for a GPU on the other node.
func TestQuickStartBesideACPUNode(t *testing.T) {
	ctx := context.Background()
	s := newSpace(t)
	t.Cleanup(func() { reinstall(t) })
	uninstall(t)
	requireNothingOfOurs(t)
	requireNodeSaysNothing(t)
	t.Cleanup(func() {
		if t.Failed() {
			saveLogs() // those of the node go with it
		}
		assert.NoError(t, cluster.RemoveNode(ctx))
	})
	_, err := cluster.AddCPUNode(ctx)
	require.NoError(t, err)

	r, blocks := quickStart(t)
	first, others := untilSlice(blocks)
	var commands []string
	for _, b := range first {
		for _, c := range b.Commands {
			commands = append(commands, c.Text)
		}
	}
	apply := slices.IndexFunc(commands, func(c string) bool { return strings.HasPrefix(c, "kubectl apply ") })
	require.Positive(t, apply)
	require.LessOrEqual(t, apply+1, toFirstSlice, "%q", commands)
	for _, b := range first {
		r.does(b)
	}
	requireAllReady(t)

	slice, err := cluster.API.CoreV1().Pods("default").Get(ctx, "slice", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, kube.Running(slice))
	require.Equal(t, harness.NodeName, slice.Spec.NodeName)
	require.Equal(t, []int64{4096}, memoryOf(s.devices(slice, "main")))
	agents, err := cluster.PodsOf(ctx, "agent")
	require.NoError(t, err)
	require.Len(t, agents, 1)
	require.Equal(t, harness.NodeName, agents[0].Spec.NodeName)
	node, err := cluster.API.CoreV1().Nodes().Get(ctx, kube.SecondNode, metav1.GetOptions{})
	require.NoError(t, err)
	requireSaysNothing(t, node)

	on := func(name string, r resources) *corev1.Pod {
		p := pod(name, container("main", r))
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: kube.SecondNode}
		return p
	}
	s.run(on("plain", nil))
	s.create(on("gpu", gpu(2000, 10)))
	came, _, says := s.cameOf("gpu")
	require.Equal(t, unscheduled, came, says)
	s.empty()

	// The barrier, the display, and the end of the pod.
	r.follows(others)
	requireAllReady(t)
}

// requireAllReady waits for the rollout of each part of the release as a user does.
func requireAllReady(t *testing.T) {
	ctx := context.Background()
	all, err := cluster.Kubectl(ctx, "--namespace="+kube.Namespace, "get", "daemonsets,deployments", "--output=name")
	require.NoError(t, err)
	names := strings.Fields(all)
	require.Contains(t, names, "daemonset.apps/"+kube.AgentName)
	require.Contains(t, names, "deployment.apps/"+kube.SchedulerName)
	for _, name := range names {
		out, err := cluster.Kubectl(ctx, "--namespace="+kube.Namespace, "rollout", "status", name, "--timeout=2m")
		require.NoError(t, err, out)
	}
	requireAgent(t)
}

// memoryOf returns the MiB of devices.
func memoryOf(all []device) (mib []int64) {
	for _, d := range all {
		mib = append(mib, d.totalMiB)
	}
	return mib
}
