//go:build root

package chart

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	kubescheduler "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

// keys matches the grant keys, which are random if the chart is rendered without a cluster.
var keys = regexp.MustCompile(`(?m)^(  private.pem: |    MCowBQYDK2VwAyEA).*$`)

// labelled are the labels that all objects of a component have.
var labelled = regexp.MustCompile(`(?m)^  labels:
    app.kubernetes.io/name: gpuslice
    app.kubernetes.io/instance: gpuslice
    app.kubernetes.io/component: [a-z]+
    app.kubernetes.io/version: "0.1.0"
    app.kubernetes.io/managed-by: Helm
    helm.sh/chart: gpuslice-0.1.0$`)

// What the chart makes by itself, as the difference to the plain manifests: `make generate` writes it.
func TestGolden(t *testing.T) {
	const ours, theirs = "gpuslice-system", "kube-system"
	manifests := map[string]string{} // by kind and name
	for _, p := range plain {
		if p.file == "scheduler/extender.yaml" {
			continue // its objects have names of scheduler/scheduler.yaml
		}
		text, err := os.ReadFile(filepath.Join("../../install", p.file))
		require.NoError(t, err)
		for _, d := range documents(string(text)) {
			manifests[identity(d)] = d
		}
	}
	config, err := os.ReadFile("../../install/scheduler/config.yaml")
	require.NoError(t, err)
	manifests["ConfigMap gpuslice-scheduler"] = "data:\n  config.yaml: |\n" + regexp.MustCompile(`(?m)^.`).ReplaceAllString(string(config), "    $0")

	var differences strings.Builder
	for _, d := range documents(keys.ReplaceAllString(render(t, ours), "${1}RANDOM")) {
		require.Regexp(t, labelled, d)
		if identity(d) != "RoleBinding gpuslice-scheduler-authentication-reader" {
			require.NotRegexp(t, `(?mi)^[^#\n]*(namespace: |system:serviceaccount:)`+theirs, d)
		}
		d = regexp.MustCompile(`(?mi)(namespace: |system:serviceaccount:)`+ours+`\b`).ReplaceAllString(bare(d), "${1}"+theirs)
		manifest, is := manifests[identity(d)]
		if !is {
			d = regexp.MustCompile(`(?m)^ *#.*\n`).ReplaceAllString(d, "")
		}
		if lines := ocitest.DifferingLines(trimmed(manifest), trimmed(d)); lines != "" {
			differences.WriteString(identity(d) + "\n" + lines + "\n")
		}
		delete(manifests, identity(d))
	}
	for _, missing := range slices.Sorted(maps.Keys(manifests)) {
		differences.WriteString("not made: " + missing + "\n")
	}
	golden.Check(t, "testdata/default.diff", differences.String())
}

// identity is the kind and the name of a document of YAML.
func identity(document string) string {
	match := regexp.MustCompile(`(?ms)^kind: (\w+)$.*?^  name: (\S+)$`).FindStringSubmatch(document)
	return match[1] + " " + match[2]
}

// trimmed is a document without empty lines and without comments that are not indented.
func trimmed(document string) string {
	return regexp.MustCompile(`(?m)^(#.*)?\n`).ReplaceAllString(document+"\n", "")
}

// The chart makes a key pair, unless the operator has one.
func TestGrantKeys(t *testing.T) {
	keysOf := func(values ...string) (private, public string) {
		for _, o := range objects(t, render(t, "gpus", values...)) {
			m, err := meta.Accessor(o)
			require.NoError(t, err)
			if !strings.HasPrefix(m.GetName(), "gpuslice-grant-") {
				continue
			}
			switch o := o.(type) {
			case *corev1.Secret:
				private = string(o.Data["private.pem"])
			case *corev1.ConfigMap:
				public = o.Data["public.pem"]
			}
			require.Equal(t, "keep", m.GetAnnotations()["helm.sh/resource-policy"], "running containers have grants that are signed with it")
			require.Equal(t, "pre-install,pre-upgrade", m.GetAnnotations()["helm.sh/hook"], "a rollback would restore the keys of its revision")
		}
		return private, public
	}
	private, public := keysOf()
	key, _, err := grant.ParseSigningKeys([]byte(private))
	require.NoError(t, err)
	ring, err := grant.ParsePublicKeys([]byte(public))
	require.NoError(t, err)
	signature, err := key.Sign("u-1", "node-1", "{}")
	require.NoError(t, err)
	require.NoError(t, ring.Verify("u-1", "node-1", "{}", signature))
	another, _ := keysOf(`agent.enabled=true`) // the default: other values, another key
	require.NotEqual(t, private, another)
	for _, values := range []string{`grantKey={"existingSecret":"mine","existingConfigMap":"mine"}`, `grantKey.enabled=false`} {
		private, public = keysOf(values)
		require.Empty(t, private+public)
	}
}

// With only one of the two objects, the other side would have no keys.
func TestGrantKeysOfTheOperatorAreBothNamed(t *testing.T) {
	for values, want := range map[string]string{
		`grantKey.existingSecret="mine"`:    "set grantKey.existingConfigMap too",
		`grantKey.existingConfigMap="mine"`: "set grantKey.existingSecret too",
	} {
		_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.36.3", "--set-json", values)
		require.Error(t, err, values)
		require.Contains(t, errs, want)
	}
	render(t, "gpus", `grantKey.existingConfigMap="mine"`, `scheduler.enabled=false`)
	render(t, "gpus", `grantKey.existingSecret="mine"`, `agent.enabled=false`)
}

// Root of a node can read each object that the agent's pod names (the kubelet may read it), and has the agent's rights.
// With these it can't make a signature.
func TestAnAgentCannotSign(t *testing.T) {
	for variant, values := range variants {
		t.Run(variant, func(t *testing.T) {
			found := objects(t, render(t, "gpus", values...))
			reads := map[string]bool{}
			for _, w := range workloads(found) {
				if w.component() != "agent" {
					continue
				}
				for _, v := range w.template.Spec.Volumes {
					require.Nil(t, v.Secret, "volume %s", v.Name)
					require.Nil(t, v.Projected, "volume %s", v.Name)
					require.Nil(t, v.CSI, "volume %s", v.Name)
					if v.ConfigMap != nil {
						reads[v.ConfigMap.Name] = true
					}
				}
				for _, c := range w.template.Spec.Containers {
					require.Empty(t, c.EnvFrom)
					for _, e := range c.Env {
						require.True(t, e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil, e.Name)
					}
				}
			}
			for _, o := range found {
				if c, is := o.(*corev1.ConfigMap); is && reads[c.Name] {
					for file, text := range c.Data {
						require.NotContains(t, text, "PRIVATE KEY", "%s of ConfigMap %s", file, c.Name)
					}
				}
			}
			for right := range granted(t, found) {
				if strings.HasPrefix(right, "agent: ") {
					require.NotContains(t, right, "secrets", "and it can't read them with its own rights")
					require.NotContains(t, right, " is ", "a role that isn't the chart's")
					require.NotContains(t, right, "create pods", "nor by a pod that mounts them")
					require.NotContains(t, right, "serviceaccounts", "nor with another's rights")
				}
			}
		})
	}
}

// References between objects are correct: names, selectors, ports.
func TestObjectsFindEachOther(t *testing.T) {
	for variant, values := range variants {
		t.Run(variant, func(t *testing.T) {
			text := render(t, "gpus", values...)
			found := objects(t, text)
			there := map[string]bool{"Secret/tls": variant == "certificate", "Secret/mine": variant == "keys", "ConfigMap/mine": variant == "keys", "ConfigMap/": false}
			for _, o := range found {
				m, err := meta.Accessor(o)
				require.NoError(t, err)
				name := o.GetObjectKind().GroupVersionKind().Kind + "/" + m.GetNamespace() + "/" + m.GetName()
				require.False(t, there[name], "%s is there twice", name)
				there[name], there[o.GetObjectKind().GroupVersionKind().Kind+"/"+m.GetName()] = true, true
				require.Equal(t, "gpuslice", m.GetLabels()["app.kubernetes.io/name"], name)
				require.Equal(t, "Helm", m.GetLabels()["app.kubernetes.io/managed-by"], name)
			}
			pods := workloads(found)
			selects := func(what string, selector map[string]string) {
				n := 0
				for _, w := range pods {
					if labels.SelectorFromSet(selector).Matches(labels.Set(w.template.Labels)) {
						n++
					}
				}
				require.Equal(t, 1, n, "%s selects %v", what, selector)
			}
			for _, w := range pods {
				selects(w.name, w.selector)
				for stays := range w.selector {
					require.NotContains(t, []string{"app.kubernetes.io/version", "helm.sh/chart"}, stays, "a selector can't be changed at an upgrade")
				}
				require.True(t, there["ServiceAccount/"+w.template.Spec.ServiceAccountName], w.name)
				for _, v := range w.template.Spec.Volumes {
					if v.ConfigMap != nil {
						require.True(t, there["ConfigMap/"+v.ConfigMap.Name], "%s: ConfigMap %s", w.name, v.ConfigMap.Name)
					}
					if v.Secret != nil {
						require.True(t, there["Secret/"+v.Secret.SecretName], "%s: Secret %s", w.name, v.Secret.SecretName)
					}
				}
			}
			for _, o := range found {
				switch o := o.(type) {
				case *corev1.Service:
					selects("Service "+o.Name, o.Spec.Selector)
				case *policyv1.PodDisruptionBudget:
					selects("PodDisruptionBudget "+o.Name, o.Spec.Selector.MatchLabels)
				case *networkingv1.NetworkPolicy:
					selects("NetworkPolicy "+o.Name, o.Spec.PodSelector.MatchLabels)
				case *admissionv1.MutatingWebhookConfiguration:
					for _, w := range o.Webhooks {
						reached(t, w.ClientConfig, there)
					}
				case *admissionv1.ValidatingWebhookConfiguration:
					for _, w := range o.Webhooks {
						reached(t, w.ClientConfig, there)
					}
				}
			}
		})
	}
}

func reached(t *testing.T, client admissionv1.WebhookClientConfig, there map[string]bool) {
	t.Helper()
	if client.URL != nil {
		require.Regexp(t, `^https://192.0.2.1:8443/(mutate|validate)$`, *client.URL)
		return
	}
	require.True(t, there["Service/"+client.Service.Namespace+"/"+client.Service.Name], client.Service)
}

// The scheduler reads its configuration, whatever the values.
func TestSchedulersConfiguration(t *testing.T) {
	for variant, values := range variants {
		t.Run(variant, func(t *testing.T) {
			for _, o := range objects(t, render(t, "gpus", values...)) {
				config, is := o.(*corev1.ConfigMap)
				if !is {
					continue
				}
				if args, is := config.Data["args.yaml"]; is {
					_, err := plugin.ParseArgs(raw(t, args))
					require.NoError(t, err)
				}
				text, is := config.Data["config.yaml"]
				if !is {
					continue
				}
				var parsed kubescheduler.KubeSchedulerConfiguration
				require.NoError(t, yaml.UnmarshalStrict([]byte(text), &parsed))
				require.Equal(t, "gpus", parsed.LeaderElection.ResourceNamespace)
				i := slices.IndexFunc(parsed.Profiles[0].PluginConfig, func(p kubescheduler.PluginConfig) bool { return p.Name == plugin.Name })
				args, err := plugin.ParseArgs(&runtime.Unknown{Raw: parsed.Profiles[0].PluginConfig[i].Args.Raw})
				require.NoError(t, err)
				if variant == "other-names" {
					require.Equal(t, "example.com/gpu", args.Engine().Request.Names.Count)
					require.Empty(t, args.Engine().Request.Names.Priority)
				}
				if variant == "default" {
					require.Equal(t, "/etc/gpuslice/keys/private.pem", args.GrantPrivateKeyFile)
				}
			}
		})
	}
}

func raw(t *testing.T, text string) *runtime.Unknown {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	require.NoError(t, err)
	return &runtime.Unknown{Raw: data}
}

// What Prometheus' operator is given is of its form, as far as it can be seen without its types.
func TestMonitoring(t *testing.T) {
	kinds := map[string]bool{}
	for _, d := range documents(render(t, "gpus", append(variants["monitored"], `monitoring.prometheusRule.enabled=true`, `monitoring.dashboard.enabled=true`)...)) {
		var object struct {
			metav1.TypeMeta `json:",inline"`
			Data            map[string]string
			Spec            struct {
				Groups []struct {
					Name  string
					Rules []map[string]any
				}
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(d), &object))
		switch object.Kind {
		case "PrometheusRule":
			require.NotEmpty(t, object.Spec.Groups)
			for _, g := range object.Spec.Groups {
				require.NotEmpty(t, g.Rules, g.Name)
			}
		case "ConfigMap":
			if text, is := object.Data["gpuslice.json"]; is {
				var board struct{ Panels []any }
				require.NoError(t, yaml.Unmarshal([]byte(text), &board))
				require.NotEmpty(t, board.Panels)
				kinds["dashboard"] = true
			}
		}
		kinds[object.Kind] = true
	}
	for _, kind := range []string{"PrometheusRule", "dashboard"} {
		require.True(t, kinds[kind], kind)
	}
}
