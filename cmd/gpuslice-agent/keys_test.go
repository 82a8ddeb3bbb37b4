package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/granttest"
	"github.com/stretchr/testify/require"
)

// The agent's key file reaches its decisions, and is followed. The grant names a GPU
// that is not there, so that one which verifies is refused for that.
func TestGrantPublicKeyFile(t *testing.T) {
	const payload = `{"version":1,"containers":{"main":[{"uuid":"GPU-0a000000-1111-2222-3333-444455556666","memoryMiB":1,"cores":1}]}}`
	o := testOptions(t)
	o.GrantPublicKeyFile = filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(o.GrantPublicKeyFile, []byte(granttest.PublicKeys("old")), 0o444))
	runtime := startRuntime(t, o.NRISocket)
	stop, log := o.run(t)
	require.Eventually(t, func() bool { return get(o.HealthAddress, "/readyz").status == 200 }, 20*time.Second, 5*time.Millisecond, "%v", log)

	key := granttest.SigningKey("new")
	signature, err := key.Sign("u-1", o.NodeName, payload)
	require.NoError(t, err)
	refusal := func(annotations map[string]string) string {
		// As containerd does: a plugin is asked from the end of its synchronisation on.
		defer runtime.BlockPluginSync().Unblock()
		_, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
			Pod:       &api.PodSandbox{Id: "s", Uid: "u-1", Name: "p", Namespace: "ns", Annotations: annotations},
			Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main"},
		})
		require.Error(t, err)
		return err.Error()
	}
	signed := map[string]string{gpuapi.AnnotationGrant: payload, gpuapi.AnnotationSignature: signature}
	require.Contains(t, refusal(map[string]string{gpuapi.AnnotationGrant: payload}), "signed grants only")
	require.Contains(t, refusal(signed), "was made with key "+key.ID())

	require.NoError(t, os.WriteFile(o.GrantPublicKeyFile+".new", []byte(granttest.PublicKeys("old", "new")), 0o444))
	require.NoError(t, os.Rename(o.GrantPublicKeyFile+".new", o.GrantPublicKeyFile))
	require.Eventually(t, func() bool { return strings.Contains(refusal(signed), "no such GPU") }, 20*time.Second, 100*time.Millisecond)
	require.NoError(t, stop())
}
