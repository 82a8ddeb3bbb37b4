//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// A node without the label has no agent. The discovery labels it when the machine has a GPU, with the rights that the chart gives
// it, and the agent comes. The GPU is a file that describes a PCI device to the discovery's container.
func TestDiscovery(t *testing.T) {
	ctx := context.Background()
	t.Cleanup(func() { require.NoError(t, cluster.InstallChart(ctx)) })
	require.NoError(t, cluster.InstallChart(ctx, "--set=discovery.enabled=true"))

	nodes := cluster.API.CoreV1().Nodes()
	_, err := nodes.Patch(ctx, harness.NodeName, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, api.LabelHasGPU), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		agents, err := cluster.PodsOf(ctx, "agent")
		if err == nil && len(agents) > 0 {
			err = fmt.Errorf("pod %s is still there", agents[0].Name)
		}
		return err
	}))

	devices := filepath.Join(cluster.Dir, "pci-devices")
	device := filepath.Join(devices, "0000:17:00.0")
	require.NoError(t, os.MkdirAll(device, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(device, "uevent"), []byte("PCI_CLASS=30200\nPCI_ID=10DE:2335\nPCI_SLOT_NAME=0000:17:00.0\n"), 0o644))
	_, err = cluster.API.AppsV1().DaemonSets(kube.Namespace).Patch(ctx, kube.Release+"-discovery", types.StrategicMergePatchType, fmt.Appendf(nil,
		`{"spec":{"template":{"spec":{"volumes":[{"name":"pci","hostPath":{"path":%q,"type":"Directory"}}],
		"containers":[{"name":"discovery","volumeMounts":[{"name":"pci","mountPath":"/sys/bus/pci/devices","readOnly":true}]}]}}}}`, devices), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		node, err := nodes.Get(ctx, harness.NodeName, metav1.GetOptions{})
		if err == nil && node.Labels[api.LabelHasGPU] != "true" {
			err = fmt.Errorf("the node has the labels %v", node.Labels)
		}
		return err
	}))
	require.NoError(t, cluster.WaitRelease(ctx))
	require.NoError(t, cluster.WaitNode(ctx))
	requireAgent(t)
}
