package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

// apiServer serves a node, its agent and its pods, within the rights of gpuslice-view and gpuslice-ask.
type apiServer struct {
	node  *v1.Node
	agent *v1.Pod
	pods  []*v1.Pod
	// listed are the pods of lists; nil: the right is missing.
	listed []v1.Pod
	// view is the agent's answer; nil: none.
	view *view.Node
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	switch path := r.URL.Path; {
	case r.Method != http.MethodGet:
	case path == "/api/v1/nodes/"+a.node.Name:
		answer = a.node
	case path == "/api/v1/nodes":
		answer = v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []v1.Node{*a.node}}
	case a.listed != nil && (path == "/api/v1/pods" || path == "/api/v1/namespaces/default/pods") && r.URL.Query().Get("labelSelector") == "":
		answer = v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: a.listed}
	case path == "/api/v1/pods" && strings.Contains(r.URL.Query().Get("labelSelector"), "component=agent"):
		answer = v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{*a.agent}}
	case path == "/api/v1/namespaces/gpuslice-system/pods/agent-x:9394/proxy/api/v1/view" && a.view != nil:
		answer = a.view
	}
	for _, p := range a.pods {
		if r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/"+p.Namespace+"/pods/"+p.Name {
			answer = p
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if answer == nil {
		w.WriteHeader(http.StatusNotFound)
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "not found"}
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
}

// clusterOf is a cluster with node-1 by the state directory, and a kubeconfig for it.
func clusterOf(t *testing.T, s *nodetest.StateDir, f node.File) (*apiServer, string) {
	n, err := nodeview.Read(t.Context(), s.Dir)
	require.NoError(t, err)
	reported := noderegister.Node{Topology: f.Topology}
	for _, d := range f.Devices {
		gpu, _ := f.Node.GPU(d.GPU)
		mode := api.ModeShared
		if d.MIG() {
			mode = api.ModeMIG
		}
		reported.Devices = append(reported.Devices, noderegister.Device{GPU: gpu, Replicas: d.Replicas, MemoryMiB: d.MemoryMiB, CorePercent: d.CorePercent, Mode: mode, Healthy: f.Unhealthy(d.UUID, d.GPU) == ""})
	}
	a := &apiServer{
		view: &n,
		node: &v1.Node{
			TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: noderegister.Render(reported, noderegister.Options{}).Annotations},
		},
		agent: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "gpuslice-system", Name: "agent-x"},
			Spec:       v1.PodSpec{NodeName: "node-1", Containers: []v1.Container{{Ports: []v1.ContainerPort{{Name: "metrics", ContainerPort: 9394}}}}},
			Status:     v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
		},
	}
	for _, name := range []string{"train", "whole", "waits", "plain"} {
		p := &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{NodeName: "node-1"}}
		if name == "waits" {
			p.Spec.NodeName = ""
		}
		a.pods = append(a.pods, p)
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	noKubeconfig(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: default}}]
clusters: [{name: k, cluster: {server: %q}}]
users: [{name: u, user: {}}]
`, server.URL), 0o600))
	return a, path
}

// less removes lines with the given heads.
func less(text string, heads ...string) string {
	kept := []string{}
	for line := range strings.Lines(text) {
		out := false
		for _, head := range heads {
			out = out || strings.HasPrefix(strings.TrimSpace(line), head)
		}
		if !out {
			kept = append(kept, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.TrimSpace(strings.Join(kept, "\n"))
}

// A node of the cluster is shown as on the node itself, except what only that reports.
func TestTopologyOfARemoteNode(t *testing.T) {
	for name, of := range map[string]func() (*nodetest.StateDir, node.File){
		"pcie": func() (*nodetest.StateDir, node.File) { s := pcieNode(t); f, _ := node.Read(s.Dir); return s, f },
		"nvswitch": func() (*nodetest.StateDir, node.File) {
			f := nodeOf(t, 8, "topo-8-nvswitch.txt")
			return nodetest.NewStateDirOf(t, f), f
		},
		"one": func() (*nodetest.StateDir, node.File) {
			f := nodeOf(t, 1, "topo-1.txt")
			return nodetest.NewStateDirOf(t, f), f
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := of()
			_, kubeconfig := clusterOf(t, s, f)
			assert.Equal(t, shows(t, "topology", "-o", "wide", "--state-dir", s.Dir), shows(t, "topology", "node-1", "-o", "wide", "--kubeconfig", kubeconfig))
			matrix := shows(t, "topology", "node-1", "--matrix", "--kubeconfig", kubeconfig)
			assert.Contains(t, matrix, "note: only the node itself reports the CPUs next to GPUs: run gpuslice topology --matrix there\n")
			assert.Contains(t, matrix, "\tN/A\t0\t\tN/A\n")
		})
	}
	s := nodetest.NewStateDirOf(t, migNode(t))
	_, kubeconfig := clusterOf(t, s, migNode(t))
	out := shows(t, "topology", "node-1", "--kubeconfig", kubeconfig)
	assert.Regexp(t, `MIG 3g.71gb +free`, out, "of a GPU that the Node object does not have")
}

func TestDescribeRemoteGPU(t *testing.T) {
	s := pcieNode(t)
	f, err := node.Read(s.Dir)
	require.NoError(t, err)
	a, kubeconfig := clusterOf(t, s, f)
	here := shows(t, "describe", "gpu", "1", "--state-dir", s.Dir)
	asPlugin(t)
	out := shows(t, "describe", "gpu", "node-1", "1", "--kubeconfig", kubeconfig)
	const note = "note: only the node itself reports its device node, PCI bus ID and compute capability: run gpuslice describe gpu "
	assert.Contains(t, out, "\n"+note+gpuUUID(1)+" there\n")
	assert.Equal(t, less(here, "Device node:", "PCI bus ID:", "Compute capability:"), less(out, "note:"))
	assert.Contains(t, shows(t, "describe", "gpu", "node-1", "GPU-00000006", "--kubeconfig", kubeconfig), "unhealthy: XID 79")

	a.node.Annotations["hami.io/device-cordon"] = gpuUUID(1)
	assert.Regexp(t, `Use: +cordoned`, shows(t, "describe", "gpu", "node-1", "1", "--kubeconfig", kubeconfig), "in the cluster")
	a.view = nil // the agent does not answer: the Node object, and a problem
	out = shows(t, "describe", "gpu", "node-1", "1", "--kubeconfig", kubeconfig)
	assert.Contains(t, out, "Model:           NVIDIA H200\n")
	assert.Contains(t, out, "problem: its agent (pod gpuslice-system/agent-x) does not answer")
	assert.Contains(t, out, "problem: what is granted on nodes without an answer is not known")

	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"describe", "gpu", "1"}, exitUsage, "add the argument NODE"},
		{[]string{"topology"}, exitUsage, "add the argument NODE"},
		{[]string{"describe", "gpu", "node-2", "1"}, exitFailed, "node node-2: "},
		{[]string{"describe", "gpu", "node-1", "17"}, exitFailed, `GPU "17" not found`},
		{[]string{"topology", "node-1", "x"}, exitUsage, "unexpected arguments (node-1 x): use kubectl gpuslice topology NODE"},
	} {
		status, out, stderr := gpuslice(append(test.args, "--kubeconfig", kubeconfig)...)
		assert.Equal(t, test.status, status, stderr)
		assert.Empty(t, out)
		assert.Contains(t, stderr, test.want)
	}
}

func TestDescribeRemoteContainer(t *testing.T) {
	s := pcieNode(t)
	s.Claim("c-side", "train", grant.Share{UUID: gpuUUID(3), MemoryMiB: 1000})
	s.Use("c-train", 0, 30000<<20)
	f, err := node.Read(s.Dir)
	require.NoError(t, err)
	a, kubeconfig := clusterOf(t, s, f)
	percent := 97.4
	for i, c := range a.view.Containers {
		if c.ContainerID == "c-side" {
			a.view.Containers[i].Name = "side"
		}
		if c.ContainerID == "c-train" {
			a.view.Containers[i].Shares[0].CoreUsedPercent = &percent
		}
	}
	describe := func(args ...string) (int, string, string) {
		return gpuslice(append([]string{"describe", "container", "--all-nodes", "--kubeconfig", kubeconfig}, args...)...)
	}
	_, out, _ := describe("default/train:main")
	here := shows(t, "describe", "container", "c-train", "--state-dir", s.Dir)
	assert.Equal(t, less(here, "Directory:", "Cores:", "Priority:"), less(out, "Cores", "note:"))
	assert.Contains(t, out, "\n  Cores used:    97 % of the GPU's time, by NVML (nvmlDeviceGetProcessesUtilizationInfo)\n")
	assert.Contains(t, out, "note: only the node itself reports the limits and the kinds of memory: run gpuslice describe container c-train there\n")
	for _, name := range []string{"train:main", "default/train/main"} {
		_, again, _ := describe(name)
		assert.Equal(t, out, again, name)
	}
	_, whole, _ := describe("whole")
	assert.Contains(t, whole, "default/whole")

	for _, test := range []struct {
		name   string
		status int
		want   string
	}{
		{"train", exitFailed, `is ambiguous: use one of c-side (default/train/side), c-train (default/train/main)`},
		{"train:other", exitFailed, `"default/train:other"`},
		{"plain", exitFailed, "node node-1 reports no container of pod default/plain with a share"},
		{"waits", exitFailed, "pod default/waits is not scheduled: run kubectl gpuslice explain default/waits"},
		{"team/nope", exitFailed, "pod team/nope not found"},
		{"a/b/c/d", exitUsage, "use [NAMESPACE/]POD"},
	} {
		status, out, stderr := describe(test.name)
		assert.Equal(t, test.status, status, stderr)
		assert.Empty(t, out)
		assert.Contains(t, stderr, test.want)
	}
	a.view = nil
	status, _, stderr := describe("train")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, stderr, "its agent (pod gpuslice-system/agent-x) does not answer")
}

// What is not known is "-", and never 0 or free. Grants are known from the pods' annotations.
func TestNodeWithoutItsAgent(t *testing.T) {
	s := pcieNode(t)
	f, err := node.Read(s.Dir)
	require.NoError(t, err)
	a, kubeconfig := clusterOf(t, s, f)
	a.view = nil
	asPlugin(t)
	show := func(args ...string) string { return shows(t, append(args, "--kubeconfig", kubeconfig)...) }
	row := func(out, of string) string {
		for line := range strings.Lines(out) {
			if strings.Contains(line, of) {
				return strings.Join(strings.Fields(line), " ")
			}
		}
		require.FailNow(t, "no row "+of, out)
		return ""
	}
	a.listed = []v1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "u", Annotations: map[string]string{
			api.AnnotationGrant: `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"` + gpuUUID(0) + `","memoryMiB":4096,"cores":25}]}}`}},
		Spec: v1.PodSpec{NodeName: "node-1", Containers: []v1.Container{{Name: "main"}}},
	}}
	out := show("status")
	assert.Equal(t, "node-1:0 NVIDIA H200 "+gpuUUID(0)+" 1/10 4096/143771 MiB 25/100 % -", row(out, gpuUUID(0)))
	assert.Equal(t, "default/train main granted node-1:0 -/4096 MiB 25 % - -", row(out, "default/train"))
	assert.Contains(t, out, "does not answer")
	assert.Equal(t, "GPU0 shared", strings.Join(strings.Fields(strings.Trim(row(show("topology", "node-1"), "GPU0"), "│├└─ "))[:2], " "))
	assert.Regexp(t, `Memory used: +-\n`, show("describe", "gpu", "node-1", "0"))
	assert.Regexp(t, `Memory: +- of 4096 MiB\n`, show("describe", "container", "train"))
	assert.Contains(t, show("describe", "container", "train"), "run gpuslice describe container default/train there")
	assert.Equal(t, "pod/train\n", show("describe", "container", "train", "-o", "name"))
	once := show("top", "--once", "--interval=100ms")
	assert.Contains(t, row(once, "default/train"), "-/4096M]")
	assert.Contains(t, row(once, "node-1:0 "), "-/140G]")
	assert.Contains(t, show("status", "-o", "name"), "pod/train\n")
	assert.Contains(t, show("status", "-o", "jsonpath={.gpus[0].useUnknown}"), "true")

	a.listed = nil // nothing is known
	out = show("status")
	assert.Equal(t, "node-1:0 NVIDIA H200 "+gpuUUID(0)+" -/10 -/143771 MiB -/100 % -", row(out, gpuUUID(0)))
	out = show("topology", "node-1")
	assert.NotContains(t, out, "free")
	assert.Equal(t, "node-1 SYS -/7", row(out, "node-1"))
	assert.Regexp(t, `Use: +-\n`, show("describe", "gpu", "node-1", "0"))
}

// kubectl-gpuslice completes names of the cluster.
func TestPluginCompletions(t *testing.T) {
	usual := completionTimeout
	completionTimeout = time.Minute
	t.Cleanup(func() { completionTimeout = usual })
	s := pcieNode(t)
	f, err := node.Read(s.Dir)
	require.NoError(t, err)
	a, kubeconfig := clusterOf(t, s, f)
	for _, p := range a.pods {
		a.listed = append(a.listed, *p)
	}
	asPlugin(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	for args, want := range map[string][]string{
		"topology ":                  {"node-1"},
		"describe gpu n":             {"node-1"},
		"cordon node-1 GPU-00000001": {gpuUUID(1)},
		"explain tr":                 {"train"},
		"defrag default/w":           {"default/whole", "default/waits"},
		"migrate hami --node n":      {"node-1"},
		"resize ":                    {},
		"status --context ":          {"c"},
		"explain train ":             {},
	} {
		assert.Equal(t, want, completions(t, strings.Split(args, " ")...), args)
	}
}
