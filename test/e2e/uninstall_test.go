//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// uninstall does what docs/UPGRADING.md describes.
func uninstall(t *testing.T) {
	blocks := blocksAt(t, "docs/UPGRADING.md#Uninstall")
	require.Len(t, blocks, 1)
	newReader(t, nil).does(blocks[0])
}

// requireNothingOfOurs waits until no object of the release is left. The kubelet removes the ResourceSlices of a driver 30 s after
// the driver is gone.
func requireNothingOfOurs(t *testing.T) {
	assert.NoError(t, harness.Until(t.Context(), 2*time.Minute, func(context.Context) error {
		if found := ours(t); len(found) > 0 {
			return fmt.Errorf("still there: %v", found)
		}
		return nil
	}))
}

// reinstall brings the release back that the other tests have.
func reinstall(t *testing.T) {
	ctx := context.Background()
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		_, err := cluster.API.CoreV1().Namespaces().Get(ctx, kube.Namespace, metav1.GetOptions{})
		if err == nil {
			_, err = cluster.Helm(ctx, "status", kube.Release)
		}
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}))
	require.NoError(t, cluster.InstallChart(ctx))
	require.NoError(t, cluster.WaitWebhook(ctx))
	require.NoError(t, cluster.WaitNode(ctx))
}

// filesBelow are all files of a directory that may not be there.
func filesBelow(t *testing.T, dir string) (files []string) {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	require.NoError(t, err)
	return files
}

// ours are the objects of all kinds but events with our name in their name.
func ours(t *testing.T) (found []string) {
	ctx := context.Background()
	kinds, err := cluster.Kubectl(ctx, "api-resources", "--verbs=list", "--output=name")
	require.NoError(t, err)
	var all []string
	for kind := range strings.FieldsSeq(kinds) {
		if !strings.HasPrefix(kind, "events") && !strings.HasPrefix(kind, "componentstatuses") {
			all = append(all, kind)
		}
	}
	names, err := cluster.Kubectl(ctx, "get", strings.Join(all, ","), "--all-namespaces", "--output=name", "--ignore-not-found")
	require.NoError(t, err)
	for name := range strings.FieldsSeq(names) {
		if strings.Contains(name, "gpuslice") {
			found = append(found, name)
		}
	}
	return found
}

// After an uninstall by the guide, nothing of gpuslice is on the node or in the cluster, and a running job
// continues with its limits: it has mounted what it needs. A new installation by the guide and the quick
// start works.
func TestUninstallAndInstallAgain(t *testing.T) {
	s := newSpace(t)
	s.run(job("job"))
	s.requireGoesOn("job")
	require.NotEmpty(t, ours(t))
	t.Cleanup(func() { reinstall(t) })
	uninstall(t)

	s.requireGoesOn("job")
	requireNothingOfOurs(t)
	for _, file := range filesBelow(t, cluster.StateDir()) {
		assert.Equal(t, filepath.Join(cluster.StateDir(), "turns"), filepath.Dir(filepath.Dir(file)), "the job has only these mounted from there")
	}
	assert.Empty(t, filesBelow(t, cluster.LibraryDir()))
	sockets, err := filepath.Glob(filepath.Join(cluster.DevicePluginDir(), "*gpuslice*"))
	require.NoError(t, err)
	assert.Empty(t, sockets)
	requireNodeSaysNothing(t)
	specs, err := os.ReadDir(cluster.CDIDir())
	require.NoError(t, err)
	assert.Len(t, specs, 1, "only the driver's")
	s.requireGoesOn("job")
	s.delete("job")

	firstRelease(t)
	newcomer(t)
}

// firstRelease does what docs/INSTALL.md describes, from the installation to the uninstallation and the
// removal of what that leaves.
func firstRelease(t *testing.T) {
	ctx := context.Background()
	image, err := kube.ChartImage()
	require.NoError(t, err)
	for _, tag := range []string{"0.1.0", "0.2.0"} {
		_, err := cluster.Ctr(ctx, "images", "tag", "--force", image, "registry.example/gpuslice:"+tag)
		require.NoError(t, err)
	}
	r := newReader(t, map[string]string{"NODE": harness.NodeName})
	private, public := "", ""
	for _, b := range blocksOf(t, "docs/INSTALL.md") {
		out := r.does(b)
		var err error
		switch b.Section {
		case "Install":
			if strings.Contains(b.Commands[len(b.Commands)-1].Text, "gpuslice status") {
				require.Contains(t, out, harness.NodeName+":7", "the reader sees each GPU")
			}
		case "The grant keys":
			private, public, err = cluster.GrantKeys(ctx)
			require.NoError(t, err)
			_, ring, err := grant.ParseSigningKeys([]byte(private))
			require.NoError(t, err)
			require.Len(t, strings.Fields(ring.String()), 2)
			nodes, err := grant.ParsePublicKeys([]byte(public))
			require.NoError(t, err)
			require.ElementsMatch(t, strings.Fields(ring.String()), strings.Fields(nodes.String()), "nodes verify with the public keys of the scheduler's")
		case "Upgrade and roll back":
			require.NoError(t, cluster.WaitRelease(ctx))
			require.True(t, strings.HasSuffix(agentImage(t), "/gpuslice:0.1.0"), agentImage(t))
			// Pods have grants that were signed with them.
			nowPrivate, nowPublic, err := cluster.GrantKeys(ctx)
			require.NoError(t, err)
			require.Equal(t, private+public, nowPrivate+nowPublic, "a rollback leaves the keys as they are")
		case "Uninstall":
			require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
				pods, err := cluster.API.CoreV1().Pods(kube.Namespace).List(ctx, metav1.ListOptions{})
				if err == nil && len(pods.Items) > 0 {
					err = fmt.Errorf("pod %s is still there", pods.Items[0].Name)
				}
				return err
			}))
			nowPrivate, nowPublic, err := cluster.GrantKeys(ctx)
			require.NoError(t, err)
			require.Equal(t, private+public, nowPrivate+nowPublic, "another install finds the keys")
		}
	}
	r.doesInText(inTexts(t, remaining))
	for _, name := range ours(t) {
		assert.Equal(t, "namespace/"+kube.Namespace, name, "it is left")
	}
	requireNodeSaysNothing(t)
}

// requireNodeSaysNothing checks that the Node has no annotations of GPUs.
func requireNodeSaysNothing(t *testing.T) {
	node, err := cluster.API.CoreV1().Nodes().Get(context.Background(), harness.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	requireSaysNothing(t, node)
}

func requireSaysNothing(t *testing.T, node *corev1.Node) {
	for _, keys := range []map[string]string{node.Labels, node.Annotations} {
		for key := range keys {
			assert.False(t, strings.Contains(key, "gpuslice") || strings.Contains(key, "hami.io"), "%s is left on the node", key)
		}
	}
}

// requireAgent checks that an agent runs: kubectl rollout status succeeds also for a DaemonSet that selects no node.
func requireAgent(t *testing.T) {
	agents, err := cluster.API.AppsV1().DaemonSets(kube.Namespace).Get(context.Background(), kube.AgentName, metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, agents.Status.DesiredNumberScheduled)
	require.EqualValues(t, 1, agents.Status.NumberReady)
}

// quickStart are the commands of docs/QUICKSTART-KUBERNETES.md, and their reader.
func quickStart(t *testing.T) (*reader, []pages.Block) {
	_, err := cluster.Ctr(context.Background(), "images", "tag", "--force", harness.WorkloadImage, "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04")
	require.NoError(t, err)
	blocks := blocksAt(t, "docs/QUICKSTART-KUBERNETES.md")
	require.GreaterOrEqual(t, len(blocks), 3, "the quick start has commands")
	return newReader(t, map[string]string{"NODE": harness.NodeName}), blocks
}

// newcomer does what docs/QUICKSTART-KUBERNETES.md describes.
func newcomer(t *testing.T) {
	r, blocks := quickStart(t)
	r.follows(blocks)
}

// follows does what these blocks of the quick start describe. The last ones show the pod.
func (r *reader) follows(blocks []pages.Block) {
	seen := ""
	for _, b := range blocks {
		out := r.does(b)
		if strings.Contains(b.Commands[len(b.Commands)-1].Text, "rollout status") {
			requireAgent(r.t)
		}
		if strings.Contains(b.Commands[0].Text, "gpuslice top") {
			require.Regexp(r.t, `slice\b.*4(\.0)? ?GiB|slice\b.*4096`, out, "the newcomer sees the pod")
			seen = out
		}
	}
	require.NotEmpty(r.t, seen)
}
