package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/discovery"
	"github.com/gpuslice/gpuslice/agent/noderegister"
)

func TestDiscover(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}], users: [{name: u, user: {token: secret}}],
contexts: [{name: c, context: {cluster: c, user: u}}]}`), 0o600))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	discover := func(args ...string) (*discovery.Config, error) {
		var got *discovery.Config
		c := command(io.Discard, nil, func(_ context.Context, c discovery.Config) error {
			got = &c
			return nil
		})
		c.SetArgs(append([]string{"discover"}, args...))
		return got, c.ExecuteContext(t.Context())
	}
	got, err := discover("--node-name=n1", "--kubeconfig="+kubeconfig)
	require.NoError(t, err)
	require.Equal(t, "n1", got.Node)
	require.Equal(t, os.DirFS("/"), got.Root)
	require.Equal(t, time.Minute, got.Interval, "the help states five minutes until a label is removed")
	require.NotNil(t, got.Client)

	t.Setenv("GPUSLICE_NODE_NAME", "n2")
	got, err = discover("--kubeconfig=" + kubeconfig)
	require.NoError(t, err)
	require.Equal(t, "n2", got.Node)

	t.Setenv("GPUSLICE_NODE_NAME", "")
	for _, bad := range [][]string{{}, {"--kubeconfig=" + kubeconfig}, {"--node-name=n1"}, {"--node-name=n1", "--kubeconfig=/nonexistent"}, {"--node-name=n1", "--kubeconfig=" + kubeconfig, "more"}} {
		_, err := discover(bad...)
		require.Error(t, err, "%q", bad)
	}
}

// The agent removes labels of which it is the last writer and that it no longer writes: the discovery is another writer.
func TestDiscoveryIsNotTheAgentToTheAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	managers := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { managers <- r.URL.Query().Get("fieldManager") }))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "`+server.URL+`"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600))
	c := command(io.Discard, nil, func(ctx context.Context, c discovery.Config) error {
		_, _ = c.Client.Patch(ctx, c.Node, []byte("{}")) // the answer is empty
		return nil
	})
	c.SetArgs([]string{"discover", "--node-name=n1", "--kubeconfig=" + kubeconfig})
	require.NoError(t, c.ExecuteContext(t.Context()))
	require.Equal(t, "gpuslice-discovery", <-managers)
	require.NotEqual(t, noderegister.FieldManager, discovery.FieldManager)
}

// The agent's own command line is as before: it has one command, and refuses other words.
func TestNoOtherCommands(t *testing.T) {
	for _, word := range []string{"completion", "help", "discovery"} {
		_, started, status, _, stderr := agent(word)
		require.False(t, started, word)
		require.Equal(t, exitUsage, status, word)
		require.Contains(t, stderr, "unknown command", word)
	}
	var out bytes.Buffer
	c := command(io.Discard, nil, nil)
	c.SetArgs([]string{"--help"})
	c.SetOut(&out)
	require.NoError(t, c.Execute())
	require.Contains(t, out.String(), "Usage:\n  gpuslice-agent [flags]\n  gpuslice-agent COMMAND [flags]\n\nCommands:\n  discover ")
}
