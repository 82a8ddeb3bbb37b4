package noderegister

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

func writeKubeconfig(t *testing.T, server string) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "` + server + `", insecure-skip-tls-verify: true}}],
contexts: [{name: c, context: {cluster: c, user: u}}],
users: [{name: u, user: {token: secret}}]}`
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestClientByKubeconfig(t *testing.T) {
	api := newAPIServer(t)
	server := httptest.NewTLSServer(api) // client-go gives a token to no other
	defer server.Close()
	config, err := LoadConfig(writeKubeconfig(t, server.URL))
	require.NoError(t, err)
	config.UserAgent = "gpuslice-agent/1.0"
	client, err := NewClient(config, FieldManager)
	require.NoError(t, err)

	node, err := client.Get(t.Context(), nodeName)
	require.NoError(t, err)
	assert.Equal(t, nodeName, node.Labels["kubernetes.io/hostname"])
	assert.Contains(t, api.calls[0].query, "resourceVersion=0", "the API server may answer from its cache")
	for _, accepted := range strings.Split(api.headers.Get("Accept"), ",")[:2] {
		assert.Contains(t, accepted, "as=PartialObjectMetadata", "only metadata is requested")
	}
	assert.Equal(t, "gpuslice-agent/1.0", api.headers.Get("User-Agent"))
	assert.Equal(t, "Bearer secret", api.headers.Get("Authorization"))

	node, err = client.Patch(t.Context(), nodeName, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	require.NoError(t, err)
	assert.Equal(t, "b", node.Labels["a"])
	assert.Contains(t, api.calls[1].query, "fieldManager="+FieldManager)
	assert.Equal(t, FieldManager, node.ManagedFields[0].Manager)
}

func TestClientWithoutCredentials(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := LoadConfig("")
	require.ErrorContains(t, err, "set a kubeconfig")

	_, err = LoadConfig(filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "kubeconfig ")

	bad := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.WriteFile(bad, []byte("{"), 0o600))
	_, err = LoadConfig(bad)
	require.ErrorContains(t, err, bad)
}

// The rights in install/ are those that a whole life of the publisher needs, no more.
func TestRightsAreThoseThatAreUsed(t *testing.T) {
	used := map[string][]string{}
	run(t, Options{TencentModel: true}, nil, func(p *play) {
		p.server.annotate(api.AnnotationHAMiHandshake, "Requesting_2026-11-21 10:00:00")
		p.after(time.Minute)
		p.server.fail("patch", metav1.StatusReasonConflict)
		p.set(Node{}, true)
		p.after(time.Minute)
		p.server.fail("patch", "")
		p.after(time.Minute)
		p.stop()
		for _, c := range p.server.calls {
			if !slices.Contains(used[c.resource], c.verb) {
				used[c.resource] = append(used[c.resource], c.verb)
			}
		}
	})
	used["pods"], used["events"] = []string{"list", "watch"}, []string{"create", "patch"} // agent/podwatch, monitor/audit/podevents
	granted := map[string][]string{}
	data, err := os.ReadFile("../../install/agent-rbac.yaml")
	require.NoError(t, err)
	type object struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Rules    []struct {
			APIGroups []string `yaml:"apiGroups"`
			Resources []string
			Verbs     []string
		}
		RoleRef  struct{ Kind, Name string } `yaml:"roleRef"`
		Subjects []struct{ Kind, Name, Namespace string }
	}
	objects := map[string]object{}
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var o object
		if decoder.Decode(&o) != nil {
			break
		}
		objects[o.Kind] = o
		for _, rule := range o.Rules {
			assert.Equal(t, []string{""}, rule.APIGroups)
			for _, resource := range rule.Resources {
				granted[resource] = append(granted[resource], rule.Verbs...)
			}
		}
	}
	require.Len(t, objects, 3)
	require.NotEmpty(t, granted)
	for resource := range granted {
		slices.Sort(granted[resource])
		slices.Sort(used[resource])
	}
	assert.Equal(t, used, granted)

	binding, account := objects["ClusterRoleBinding"], objects["ServiceAccount"]
	assert.Equal(t, objects["ClusterRole"].Metadata.Name, binding.RoleRef.Name)
	require.Len(t, binding.Subjects, 1)
	assert.Equal(t, account.Metadata.Name, binding.Subjects[0].Name)
	assert.Equal(t, account.Metadata.Namespace, binding.Subjects[0].Namespace)
}
