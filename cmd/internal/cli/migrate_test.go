package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

// hamiCluster serves a cluster with HAMi, and gpuslice if agents is set. It refuses every change.
func hamiCluster(t *testing.T, agents bool, more ...v1.Node) (kubeconfig string) {
	t.Helper()
	plugin := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "hami-device-plugin", UID: "hami", Labels: map[string]string{"app.kubernetes.io/component": "hami-device-plugin"}}}
	plugin.Spec.Template.Spec = v1.PodSpec{NodeSelector: map[string]string{"gpu": "on"}, Containers: []v1.Container{{Command: []string{"nvidia-device-plugin", "--disable-core-limit=true"}}}}
	daemons := []appsv1.DaemonSet{plugin}
	if agents {
		agent := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpuslice-system", Name: "gpuslice-agent", UID: "agent", Labels: map[string]string{"app.kubernetes.io/name": "gpuslice", "app.kubernetes.io/component": "agent"}}}
		agent.Spec.Template.Spec.NodeSelector = map[string]string{api.LabelMigrated: "true"}
		daemons = append(daemons, agent)
	}
	pod := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train\x1b[31m"}, Spec: v1.PodSpec{NodeName: "node-1", Containers: []v1.Container{{Name: "main"}}}}
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "nvidia.com/gpumem": resource.MustParse("0")}
	webhooks := []map[string]any{}
	if agents {
		webhooks = append(webhooks, map[string]any{"metadata": map[string]any{"name": "gpuslice"}, "webhooks": []any{map[string]any{"name": "requests.gpuslice.io"}}})
	}
	answers := map[string]any{
		"/apis/apps/v1/daemonsets":  appsv1.DaemonSetList{Items: daemons},
		"/apis/apps/v1/deployments": appsv1.DeploymentList{}, "/apis/apps/v1/statefulsets": appsv1.StatefulSetList{}, "/apis/apps/v1/replicasets": appsv1.ReplicaSetList{},
		"/apis/batch/v1/jobs": batchv1.JobList{}, "/apis/batch/v1/cronjobs": batchv1.CronJobList{},
		"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": map[string]any{"items": webhooks},
		"/api/v1/nodes": v1.NodeList{Items: append(more, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"gpu": "on"}}})},
		"/api/v1/pods":  v1.PodList{Items: []v1.Pod{pod}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, has := answers[r.URL.Path]
		if !has || r.Method != http.MethodGet {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // the client may have gone
	}))
	t.Cleanup(server.Close)
	text, err := os.ReadFile(unreachable(t))
	require.NoError(t, err)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(string(text), "http://127.0.0.1:1", server.URL)), 0o600))
	return kubeconfig
}

func TestMigrate(t *testing.T) {
	asPlugin(t)
	t.Setenv("KUBECONFIG", hamiCluster(t, false))
	const values = `admission:
  writers:
  - system:serviceaccount:kube-system:default
agent:
  config:
    core-policy: disable
    legacy-metrics:
    - hami
  nodeSelector:
    gpuslice.io/migrated: "true"
scheduler:
  settings:
    legacyMetrics:
    - hami
    nodeSelector:
      gpuslice.io/migrated: "true"
`
	status, out, stderr := gpuslice("migrate", "hami", "--values")
	require.Equal(t, exitDone, status, stderr)
	assert.Equal(t, values, out)

	status, out, stderr = gpuslice("migrate", "hami", "--plan")
	require.Equal(t, exitDone, status, stderr)
	assert.NotContains(t, out, "\x1b", "names are those of tenants")
	for _, text := range []string{
		"HAMi: DaemonSet kube-system/hami-device-plugin\n\nValues for gpuslice's chart (--values):\n  admission:\n    writers:\n    - system:serviceaccount:kube-system:default\n  agent:\n    config:\n      core-policy: disable\n",
		"\nNot in the values:\n- admission.writers has system:serviceaccount:kube-system:default", "\n- the scheduler of HAMi is not found among the Deployments", "\n- HAMi's device-config.yaml is not mounted", "\n- HAMi's scheduler is not found",
		"\nPods that gpuslice refuses as they are:\n- team/train", "nvidia.com/gpumem: 0",
		"\nDifferent for users (docs/MIGRATING.md):\n", "- nvidia.com/gpumem: 0: HAMi: ignores it: the whole GPU; gpuslice: refused\n",
		"\nNODE    STATE   GPUS  PODS TO EVICT  NOT CREATED AGAIN\nnode-1  served  0     1              1\n",
		"\nBefore a node can be switched:\n- gpuslice is not installed in namespace gpuslice-system, gpuslice, kube-system",
		"\nCommands:\n- kubectl gpuslice migrate hami --values > values.yaml\n",
	} {
		assert.Contains(t, out, text)
	}
	status, out, _ = gpuslice("migrate", "hami", "-o", "jsonpath={.nodes[0].pods[0].recreated}")
	assert.Equal(t, exitDone, status)
	assert.Equal(t, "false", out)
	status, out, _ = gpuslice("migrate", "hami", "-o", "name")
	assert.Equal(t, exitDone, status)
	assert.Equal(t, "node/node-1\n", out)
	for _, call := range []struct {
		args   string
		status int
		want   string
	}{
		{"migrate tencent", exitFailed, "gpu-manager is not found"},
		{"migrate hami --all --yes", exitFailed, "gpuslice is not installed"},
		{"migrate hami --undo", exitUsage, "--undo needs --node or --all"},
		{"migrate hami --node node-1 --all", exitUsage, "[all node]"},
		{"migrate hami --plan --all", exitUsage, "[all plan]"},
		{"migrate volcano", exitUsage, `unknown command "volcano": use hami or tencent`},
	} {
		status, _, stderr := gpuslice(strings.Fields(call.args)...)
		assert.Equal(t, call.status, status, call.args)
		assert.Contains(t, stderr, call.want, call.args)
	}
}

// Nodes are switched after a confirmation only.
func TestMigrateConfirmed(t *testing.T) {
	asPlugin(t)
	t.Setenv("KUBECONFIG", hamiCluster(t, true))
	status, _, stderr := gpuslice("migrate", "hami", "--all")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "HAMi: DaemonSet kube-system/hami-device-plugin\nnode node-1: served, to evict: team/train")
	assert.Contains(t, stderr, "(not created again)\nDo this? [yes/no] ")
	assert.Contains(t, stderr, "not confirmed, no node was changed")
	status, _, stderr = gpuslice("migrate", "hami", "--node", "node-1", "--yes")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "node node-1: ")
	status, out, stderr := gpuslice("migrate", "hami", "--all", "--undo", "--yes")
	assert.Equal(t, exitDone, status, stderr)
	assert.Equal(t, "there is no node to switch\n", out)
}

// A node that is not known is refused before the confirmation, and --all passes over what an operator has decided.
func TestMigrateOfOtherNodes(t *testing.T) {
	asPlugin(t)
	record := func(name, text string) v1.Node {
		return v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.AnnotationMigration: text}}}
	}
	t.Setenv("KUBECONFIG", hamiCluster(t, true, record("returning-1", `{"from":"hami","back":true}`), record("changed-1", `{"from":"hami","done":true}`)))
	status, _, stderr := gpuslice("migrate", "hami", "--node", "node-2")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "node node-2 is unknown")
	assert.NotContains(t, stderr, "[yes/no]")
	_, _, stderr = gpuslice("migrate", "hami", "--all")
	assert.Contains(t, stderr, "node changed-1 is passed over, it is changed (no device plugin): use --node changed-1\n")
	assert.Contains(t, stderr, "node returning-1 is passed over, it is returning (no device plugin): use --node returning-1\n")
	assert.Contains(t, stderr, "node node-1: served")
	assert.NotContains(t, stderr, "node returning-1: ")
	_, _, stderr = gpuslice("migrate", "hami", "--all", "--undo")
	assert.Contains(t, stderr, "warning: gpuslice's policy for annotations")
	assert.Contains(t, stderr, "node returning-1: returning")
}

// A node with an unreadable record is not passed over.
func TestMigrateWithAnInvalidRecord(t *testing.T) {
	asPlugin(t)
	bad := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bad", Annotations: map[string]string{api.AnnotationMigration: "x"}}}
	t.Setenv("KUBECONFIG", hamiCluster(t, true, bad))
	for _, args := range [][]string{{"--all", "--yes"}, {"--all", "--undo", "--yes"}} {
		status, out, stderr := gpuslice(append([]string{"migrate", "hami"}, args...)...)
		assert.Equal(t, exitFailed, status, out)
		assert.Contains(t, stderr, "node bad has an invalid annotation gpuslice.io/migration")
		assert.Empty(t, out, "no node is changed")
	}
	status, out, stderr := gpuslice("migrate", "hami")
	require.Equal(t, exitDone, status, stderr)
	assert.Contains(t, out, "\nbad     invalid (no device plugin)  0     0              0\n")
}

// A node that has no device plugin is shown, also after HAMi was uninstalled; what is printed on the way back goes to stderr.
func TestMigrateAfterHAMi(t *testing.T) {
	asPlugin(t)
	half := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "half", Annotations: map[string]string{api.AnnotationMigration: `{"from":"tencent","cordoned":true}`}}}
	t.Setenv("KUBECONFIG", hamiCluster(t, true, half))
	status, out, stderr := gpuslice("migrate", "tencent")
	require.Equal(t, exitDone, status, stderr)
	assert.Equal(t, `gpu-manager is not installed any more. Nodes that are being switched can be finished, and no node can go back.

NODE  STATE                         GPUS  PODS TO EVICT  NOT CREATED AGAIN
half  switching (no device plugin)  0     0              0

Commands:
- kubectl gpuslice migrate tencent --all
`, out)
	status, _, stderr = gpuslice("migrate", "tencent", "--values")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "gpu-manager is not installed any more")
	status, _, stderr = gpuslice("migrate", "tencent", "--all", "--undo", "--yes")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "gpu-manager is not found")
	status, _, stderr = gpuslice("migrate", "hami", "--node", "node-1", "--undo", "--yes")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "warning: HAMi's webhook does not exist")
	status, _, stderr = gpuslice("migrate", "hami", "-n", "team")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "in namespace team")
}
