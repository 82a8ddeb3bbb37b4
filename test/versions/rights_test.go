//go:build e2e

package versions

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/kube"
)

// kube-scheduler 1.36 waits at its start for objects that the role system:kube-scheduler of an older cluster doesn't let it list.
func TestRightsInAnOlderCluster(t *testing.T) {
	ctx := t.Context()
	c, err := kube.NewControlPlane(ctx, "--emulated-version=1.33")
	t.Cleanup(func() {
		if c != nil {
			assert.NoError(t, c.Close(context.Background()))
		}
	})
	require.NoError(t, err)
	require.NoError(t, kube.CreateServiceAccount(ctx, c.API, "default"))
	require.NoError(t, kube.CreateNode(ctx, c.API, "node", 1, kube.GPUs(0, 1, 80<<10, nil)))
	_, err = c.Kubectl(ctx, "replace", "--filename=testdata/cluster-roles-1.30.yaml")
	require.NoError(t, err)
	_, err = c.Kubectl(ctx, "apply", "--filename=../../install/scheduler/scheduler.yaml")
	require.NoError(t, err)

	admin, err := c.Kubeconfig(kube.Admin)
	require.NoError(t, err)
	config, err := clientcmd.LoadFromFile(admin)
	require.NoError(t, err)
	for _, user := range config.AuthInfos {
		user.Impersonate = kube.ServiceAccount("kube-system", "gpuslice-scheduler").Name
	}
	kubeconfig := filepath.Join(c.Dir, "scheduler.kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, kubeconfig))
	text, err := kube.ShippedConfig(kube.PluginConfig).Connect(kubeconfig).Text()
	require.NoError(t, err)
	path := filepath.Join(c.Dir, "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	start(t, c, "scheduler", "--config="+path, "--secure-port=0", "--debug-address=")
	assert.NotEmpty(t, place(t, c).Annotations[api.AnnotationGrant])
}
