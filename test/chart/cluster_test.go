//go:build root

package chart

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// inCluster are objects of an API server by their path in it, such as api/v1/nodes/NAME.
type inCluster map[string]any

// kinds are what a template can look up.
var kinds = map[string][]metav1.APIResource{
	"v1": {
		{Name: "nodes", Kind: "Node", Verbs: metav1.Verbs{"get", "list"}},
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
		{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
	},
	"apps/v1":        {{Name: "daemonsets", Kind: "DaemonSet", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}}},
	"node.k8s.io/v1": {{Name: "runtimeclasses", Kind: "RuntimeClass", Verbs: metav1.Verbs{"get", "list"}}},
}

// ServeHTTP is the part of an API server that helm's function lookup needs.
func (c inCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	asked := strings.Trim(r.URL.Path, "/")
	switch asked {
	case "version":
		answer(http.StatusOK, version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"})
		return
	case "api":
		answer(http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	case "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for groupVersion := range kinds {
			if group, v, is := strings.Cut(groupVersion, "/"); is {
				of := metav1.GroupVersionForDiscovery{GroupVersion: groupVersion, Version: v}
				list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{of}, PreferredVersion: of})
			}
		}
		answer(http.StatusOK, list)
		return
	}
	for groupVersion, resources := range kinds {
		root := "apis/" + groupVersion
		if groupVersion == "v1" {
			root = "api/v1"
		}
		if asked == root {
			answer(http.StatusOK, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion, APIResources: resources})
			return
		}
		for _, resource := range resources {
			if path.Base(asked) != resource.Name || !strings.HasPrefix(asked, root+"/") {
				continue
			}
			items := []any{}
			for at, object := range c {
				if path.Dir(at) == asked {
					items = append(items, object)
				}
			}
			answer(http.StatusOK, map[string]any{"kind": resource.Kind + "List", "apiVersion": groupVersion, "metadata": map[string]any{"resourceVersion": "1"}, "items": items})
			return
		}
	}
	if object, is := c[asked]; is {
		answer(http.StatusOK, object)
		return
	}
	answer(http.StatusNotFound, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
}

// put adds an object at its path.
func (c inCluster) put(at, apiVersion, kind string, metadata, fields map[string]any) inCluster {
	object := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": path.Base(at)}}
	for key, value := range metadata {
		object["metadata"].(map[string]any)[key] = value
	}
	for key, value := range fields {
		object[key] = value
	}
	c[at] = object
	return c
}

// renderIn renders the chart for a cluster with these objects, as an upgrade or an installation. values are as for render.
func renderIn(t *testing.T, c inCluster, upgrade bool, dir string, values ...string) (text, errs string, err error) {
	t.Helper()
	server := httptest.NewServer(c)
	defer server.Close()
	args := []string{"template", "gpuslice", dir, "--namespace", "gpus", "--kube-apiserver", server.URL, "--dry-run=server", "--kube-version", "1.36.3"}
	if upgrade {
		args = append(args, "--is-upgrade")
	}
	for _, v := range values {
		if strings.HasSuffix(v, ".yaml") {
			args = append(args, "--values", v)
		} else {
			args = append(args, "--set-json", v)
		}
	}
	return helm(t, args...)
}

// keysIn are the two objects with the grant keys.
func keysIn(private, public string) inCluster {
	return inCluster{}.
		put("api/v1/namespaces/gpus/secrets/gpuslice-grant-private-keys", "v1", "Secret", nil, map[string]any{"data": map[string]any{"private.pem": private}}).
		put("api/v1/namespaces/gpus/configmaps/gpuslice-grant-public-keys", "v1", "ConfigMap", nil, map[string]any{"data": map[string]any{"public.pem": public}})
}

// The Job that creates the grant keys can't delay an upgrade of a cluster that has them.
func TestNoGrantKeysJobWhereThereAreKeys(t *testing.T) {
	missing := keysIn("a2V5", "key")
	delete(missing, "api/v1/namespaces/gpus/secrets/gpuslice-grant-private-keys")
	noConfigMap := keysIn("a2V5", "key")
	delete(noConfigMap, "api/v1/namespaces/gpus/configmaps/gpuslice-grant-public-keys")
	for name, tc := range map[string]struct {
		cluster inCluster
		job     bool
	}{
		"both":            {keysIn("a2V5", "key"), false},
		"none":            {inCluster{}, true},
		"no Secret":       {missing, true},
		"no ConfigMap":    {noConfigMap, true},
		"empty Secret":    {keysIn("", "key"), true},
		"empty ConfigMap": {keysIn("a2V5", ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, upgrade := range []bool{false, true} {
				text, errs, err := renderIn(t, tc.cluster, upgrade, chartDir, `networkPolicy={"enabled":true,"egress":true}`)
				require.NoError(t, err, errs)
				found := objects(t, text)
				require.Equal(t, tc.job, grantKeysJob(found) != nil)
				require.Equal(t, tc.job, strings.Contains(text, "app.kubernetes.io/component: keys"), "nor is there anything else of it")
			}
		})
	}
}

// The RuntimeClass of a release stays in the cluster when the chart no longer creates it: running pods name it, and with
// gpuOperator.enabled it becomes the operator's.
func TestRuntimeClassStays(t *testing.T) {
	const at = "apis/node.k8s.io/v1/runtimeclasses/nvidia"
	class := func(c inCluster, upgrade bool, values ...string) *nodev1.RuntimeClass {
		text, errs, err := renderIn(t, c, upgrade, chartDir, values...)
		require.NoError(t, err, errs)
		for _, o := range objects(t, text) {
			if found, is := o.(*nodev1.RuntimeClass); is {
				return found
			}
		}
		return nil
	}
	made := class(inCluster{}, false)
	require.NotNil(t, made)
	// Helm deletes objects that a release no longer has, except those with this annotation.
	require.Equal(t, "keep", made.Annotations["helm.sh/resource-policy"])
	owned := func(release string) inCluster {
		annotations := map[string]any{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "gpus", "helm.sh/resource-policy": "keep"}
		return inCluster{}.put(at, "node.k8s.io/v1", "RuntimeClass", map[string]any{"annotations": annotations}, map[string]any{"handler": "nvidia"})
	}
	require.NotNil(t, class(owned("gpuslice"), true), "an upgrade goes on with its own")
	require.Nil(t, class(owned("gpuslice"), true, variants["gpu-operator"]...))
	require.Nil(t, class(owned("other"), false), "another release's")
	require.Nil(t, class(inCluster{}.put(at, "node.k8s.io/v1", "RuntimeClass", nil, map[string]any{"handler": "nvidia"}), false), "k3s' or the operator's")
}

// addNode adds a node with these labels, and with an agent's pod and its description of GPUs.
func (c inCluster) addNode(name string, labels map[string]any, agent, gpus bool) inCluster {
	annotations := map[string]any{}
	if gpus {
		annotations["gpuslice.io/node-gpus"] = "{}"
	}
	c.put("api/v1/nodes/"+name, "v1", "Node", map[string]any{"labels": labels, "annotations": annotations}, nil)
	if agent {
		c.put("api/v1/namespaces/gpus/pods/gpuslice-agent-"+name, "v1", "Pod", map[string]any{"labels": map[string]any{
			"app.kubernetes.io/name": "gpuslice", "app.kubernetes.io/instance": "gpuslice", "app.kubernetes.io/component": "agent",
		}}, map[string]any{"spec": map[string]any{"nodeName": name}})
	}
	return c
}

// An upgrade never removes the agent from a node with GPUs: until someone notices, its GPUs are open or not offered.
func TestUpgradeKeepsTheAgents(t *testing.T) {
	labelled := map[string]any{"gpuslice.io/has-gpu": "true"}
	discovered := map[string]any{"nvidia.com/gpu.present": "true"}
	sliced := map[string]any{"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.device-plugin": "false"}
	const command = "kubectl label node "
	for name, tc := range map[string]struct {
		cluster inCluster
		values  []string
		want    string
	}{
		"no label":                          {inCluster{}.addNode("a", nil, true, true), nil, command + "a gpuslice.io/has-gpu=true"},
		"one of two without a label":        {inCluster{}.addNode("a", labelled, true, true).addNode("b", nil, true, true), nil, command + "b gpuslice.io/has-gpu=true"},
		"a label of another value":          {inCluster{}.addNode("a", labelled, true, true).addNode("b", map[string]any{"gpuslice.io/has-gpu": "false"}, true, true), nil, command + "b gpuslice.io/has-gpu=true"},
		"no agent has found GPUs yet":       {inCluster{}.addNode("a", nil, true, false), nil, command + "a gpuslice.io/has-gpu=true"},
		"all labelled":                      {inCluster{}.addNode("a", labelled, true, true).addNode("b", discovered, true, true), nil, ""},
		"an agent on a node without GPUs":   {inCluster{}.addNode("a", labelled, true, true).addNode("cpu", nil, true, false), nil, ""},
		"described, but without an agent":   {inCluster{}.addNode("a", labelled, true, true).addNode("b", nil, false, true), nil, ""},
		"no agents, as when all are scaled": {inCluster{}.addNode("cpu", nil, false, false), nil, ""},
		"the operator selects all nodes":    {inCluster{}.addNode("a", nil, true, true), []string{`agent.nodeSelector={"kubernetes.io/os":"linux"}`}, ""},
		"the operator's affinity":           {inCluster{}.addNode("a", nil, true, true), []string{`agent.affinity={"nodeAffinity":{}}`}, ""},
		"agents are switched off":           {inCluster{}.addNode("a", nil, true, true), []string{`agent.enabled=false`}, ""},
		"the GPU operator's device plugin":  {inCluster{}.addNode("a", discovered, true, true), variants["gpu-operator"], command + "a nvidia.com/gpu.deploy.device-plugin=false --overwrite"},
		"the GPU operator's is off":         {inCluster{}.addNode("a", sliced, true, true), variants["gpu-operator"], ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs, err := renderIn(t, tc.cluster, true, chartDir, tc.values...)
			if tc.want == "" {
				require.NoError(t, err, errs)
				return
			}
			require.Error(t, err)
			require.Contains(t, errs, tc.want+". Or select nodes yourself, such as all nodes: --set 'agent.nodeSelector.kubernetes\\.io/os=linux'")
			// The installation of another release has no agents yet.
			_, errs, err = renderIn(t, tc.cluster, false, chartDir, tc.values...)
			require.NoError(t, err, errs)
		})
	}
}

// An installation without a node for an agent is possible, and helm's output reports it.
func TestNotesOfAClusterWithoutLabels(t *testing.T) {
	const warning = "WARNING: no node of this cluster has such a label"
	dir := withNotes(t)
	for name, tc := range map[string]struct {
		cluster inCluster
		values  []string
		want    bool
	}{
		"no label":                 {inCluster{}.addNode("a", nil, false, false), nil, true},
		"a label":                  {inCluster{}.addNode("a", nil, false, false).addNode("b", map[string]any{"gpuslice.io/has-gpu": "true"}, false, false), nil, false},
		"the discovery labels it":  {inCluster{}.addNode("a", nil, false, false), []string{`discovery.enabled=true`}, false},
		"all nodes":                {inCluster{}.addNode("a", nil, false, false), []string{`agent.nodeSelector={"kubernetes.io/os":"linux"}`}, false},
		"the GPU operator's label": {inCluster{}.addNode("a", map[string]any{"nvidia.com/gpu.present": "true"}, false, false), variants["gpu-operator"], true},
	} {
		t.Run(name, func(t *testing.T) {
			text, errs, err := renderIn(t, tc.cluster, false, dir, tc.values...)
			require.NoError(t, err, errs)
			require.Equal(t, tc.want, strings.Contains(text, warning), text)
		})
	}
	require.NotContains(t, notes(t), warning, "without access to the cluster it is not known")
}
