//go:build e2e

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// uninstall does what docs/UPGRADING.md says of it.
func uninstall(t *testing.T) {
	ctx := context.Background()
	root, err := harness.Repository()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/UPGRADING.md"))
	require.NoError(t, err)
	_, chapter, found := strings.Cut(string(text), "\n## Uninstall\n")
	require.True(t, found)
	shell, err := cluster.Shell("latest")
	require.NoError(t, err)
	blocks := commands(chapter)
	require.Len(t, blocks, 1)
	out, err := shell(ctx, blocks[0])
	require.NoError(t, err, "%s\n%s", blocks[0], out)
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
	require.NoError(t, cluster.InstallChart(ctx, "latest"))
	require.NoError(t, cluster.WaitWebhook(ctx))
	require.NoError(t, cluster.WaitNode(ctx))
}

// filesBelow are all files of a folder that may not be there.
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

// ours are the objects of all kinds, events but not, whose name has ours in it.
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

// Who uninstalls as the guide says has nothing of gpuslice on the node or in the cluster, and a job that runs goes on with
// its limits: it has mounted what it needs. What is installed after that, as the quick start says, works.
func TestUninstallAndInstallAgain(t *testing.T) {
	ctx := context.Background()
	s := newSpace(t)
	s.run(job("job"))
	s.requireGoesOn("job")
	require.NotEmpty(t, ours(t))
	t.Cleanup(func() { reinstall(t) })
	uninstall(t)

	s.requireGoesOn("job")
	assert.Empty(t, ours(t))
	assert.Empty(t, filesBelow(t, cluster.StateDir()))
	assert.Empty(t, filesBelow(t, cluster.LibraryDir()))
	sockets, err := filepath.Glob(filepath.Join(cluster.DevicePluginDir(), "*gpuslice*"))
	require.NoError(t, err)
	assert.Empty(t, sockets)
	node, err := cluster.API.CoreV1().Nodes().Get(ctx, harness.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	for _, keys := range []map[string]string{node.Labels, node.Annotations} {
		for key := range keys {
			assert.False(t, strings.Contains(key, "gpuslice") || strings.Contains(key, "hami.io"), "%s is left on the node", key)
		}
	}
	specs, err := os.ReadDir(cluster.CDIDir())
	require.NoError(t, err)
	assert.Len(t, specs, 1, "the driver's alone")
	s.requireGoesOn("job")
	s.delete("job")

	newcomer(t)
}

// notSimulated are commands of the quick start that want a driver, and why.
var notSimulated = map[string]string{
	"kubectl exec slice -- nvidia-smi": "it is NVIDIA's program, of the driver",
}

// newcomer does what docs/QUICKSTART-KUBERNETES.md says, each command as it stands there.
func newcomer(t *testing.T) {
	ctx := context.Background()
	root, err := harness.Repository()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/QUICKSTART-KUBERNETES.md"))
	require.NoError(t, err)
	_, err = cluster.Ctr(ctx, "images", "tag", "--force", harness.WorkloadImage, "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04")
	require.NoError(t, err)
	blocks := commands(string(text))
	require.GreaterOrEqual(t, len(blocks), 3, "the quick start has commands")
	shell, err := cluster.Shell("latest")
	require.NoError(t, err)
	seen := ""
	for _, block := range blocks {
		if why, not := notSimulated[block]; not {
			t.Logf("not run: %s: %s", block, why)
			continue
		}
		out, err := shell(ctx, block)
		require.NoError(t, err, "%s\n%s", block, out)
		seen += out
		if strings.Contains(block, "gpuslice top") {
			require.Regexp(t, `slice\b.*4(\.0)? ?GiB|slice\b.*4096`, out, "the newcomer sees his pod")
		}
	}
	t.Log(seen)
}

// commands are the blocks of a document that are marked as sh.
func commands(text string) (blocks []string) {
	for _, part := range strings.Split(text, "\n```sh\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block)
	}
	return blocks
}
