package chart

import (
	"regexp"
	"slices"
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
)

// key is the grant key, which is another one each time that nobody can look into a cluster.
var key = regexp.MustCompile(`(?m)^  keys: .*$`)

// What the chart makes by itself, to be looked at: `make generate` writes it.
func TestGolden(t *testing.T) {
	golden(t, "testdata/default.yaml", key.ReplaceAllString(render(t, "gpuslice-system"), "  keys: RANDOM"))
}

// The grant key is random, and one that grants can be signed with.
func TestGrantKey(t *testing.T) {
	keyOf := func(values ...string) string {
		for _, o := range objects(t, render(t, "gpus", values...)) {
			if secret, is := o.(*corev1.Secret); is && secret.Name == "gpuslice-grant-keys" {
				require.Equal(t, "keep", secret.Annotations["helm.sh/resource-policy"], "running containers have grants that are signed with it")
				require.Equal(t, "pre-install,pre-upgrade", secret.Annotations["helm.sh/hook"], "a rollback would bring back the keys of its revision")
				return string(secret.Data["keys"])
			}
		}
		return ""
	}
	first := keyOf()
	ring, err := grant.ParseKeyring([]byte(first))
	require.NoError(t, err)
	require.NotEmpty(t, ring)
	require.NotEqual(t, first, keyOf(`agent.enabled=true`)) // which is so anyway
	require.Empty(t, keyOf(`grantKey.existingSecret="mine"`))
	require.Empty(t, keyOf(`grantKey.enabled=false`))
}

// What objects say of each other is true: names, selectors, ports.
func TestObjectsFindEachOther(t *testing.T) {
	for variant, values := range variants {
		t.Run(variant, func(t *testing.T) {
			text := render(t, "gpus", values...)
			found := objects(t, text)
			there := map[string]bool{"Secret/tls": variant == "certificate", "ConfigMap/": false}
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
	require.True(t, there["Service/gpus/"+client.Service.Name], client.Service.Name)
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
					require.Equal(t, "example.com/card", args.Engine().Request.Names.Count)
					require.Empty(t, args.Engine().Request.Names.Priority)
				}
				if variant == "default" {
					require.Equal(t, "/etc/gpuslice/keys/keys", args.GrantKeyFile)
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
