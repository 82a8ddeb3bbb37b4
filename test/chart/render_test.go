//go:build root

package chart

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	kubescheduler "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
	"github.com/gpuslice/gpuslice/test/golden"
	"github.com/gpuslice/gpuslice/test/ocitest"
)

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
	for _, d := range documents(render(t, ours)) {
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

// grantKeysJob returns the Job that creates the grant keys; nil: there is none.
func grantKeysJob(found []runtime.Object) *batchv1.Job {
	for _, o := range found {
		if job, is := o.(*batchv1.Job); is && job.Labels["app.kubernetes.io/component"] == "keys" {
			return job
		}
	}
	return nil
}

// A Job creates the keys in the cluster, unless the operator has them. The chart renders no key.
func TestGrantKeys(t *testing.T) {
	for variant, values := range variants {
		t.Run(variant, func(t *testing.T) {
			text := render(t, "gpus", values...)
			require.NotRegexp(t, "PRIVATE KEY|PUBLIC KEY", text)
			found := objects(t, text)
			job := grantKeysJob(found)
			if variant == "keys" || variant == "hami" {
				require.Nil(t, job)
				return
			}
			require.NotNil(t, job)
			pod := job.Spec.Template.Spec
			args := pod.Containers[0].Args
			require.Contains(t, args, "--namespace=gpus")
			mounted := map[string]bool{}
			for _, w := range workloads(found) {
				for _, v := range w.template.Spec.Volumes {
					if v.Name != "keys" {
						continue
					}
					if v.Secret != nil {
						mounted["--secret="+v.Secret.SecretName] = true
					} else {
						mounted["--config-map="+v.ConfigMap.Name] = true
					}
				}
			}
			require.NotEmpty(t, mounted)
			for arg := range mounted {
				require.Contains(t, args, arg)
			}
			require.Equal(t, corev1.RestartPolicyNever, pod.RestartPolicy, "the logs of a failed attempt stay")
			require.EqualValues(t, 3, *job.Spec.BackoffLimit)
			require.EqualValues(t, 600, *job.Spec.ActiveDeadlineSeconds)
			require.True(t, *pod.SecurityContext.RunAsNonRoot)
			require.Equal(t, []corev1.Capability{"ALL"}, pod.Containers[0].SecurityContext.Capabilities.Drop)
			require.Empty(t, pod.Volumes)
			for _, w := range workloads(found) {
				if w.component() == "scheduler" {
					of := w.template.Spec
					require.Equal(t, of.NodeSelector, pod.NodeSelector, "root of its node can read the keys")
					require.Equal(t, of.Tolerations, pod.Tolerations)
					require.Equal(t, of.Affinity, pod.Affinity)
					require.Equal(t, of.HostNetwork, pod.HostNetwork)
				}
			}
			// They exist before the pods that mount them, and the rights to create Secrets end with the installation.
			for _, o := range found {
				m, err := meta.Accessor(o)
				require.NoError(t, err)
				if m.GetLabels()["app.kubernetes.io/component"] != "keys" {
					require.NotContains(t, m.GetAnnotations()["helm.sh/hook"], "install")
					continue
				}
				require.Equal(t, "pre-install,pre-upgrade", m.GetAnnotations()["helm.sh/hook"])
				require.Equal(t, "before-hook-creation,hook-succeeded", m.GetAnnotations()["helm.sh/hook-delete-policy"])
				weight, err := strconv.Atoi(m.GetAnnotations()["helm.sh/hook-weight"])
				require.NoError(t, err)
				require.Equal(t, o != runtime.Object(job), weight < 0, "first the rights of the Job")
			}
		})
	}
}

// On nodes where no container starts without the agent (--require-agent), the Job's pod starts: the agents need its keys.
func TestGrantKeysJobStartsWithoutAgents(t *testing.T) {
	text := render(t, "gpus")
	job := grantKeysJob(objects(t, text))
	require.Equal(t, "true", job.Spec.Template.Annotations[api.AnnotationTolerance])
	require.Contains(t, text, "variables.tolerates.size() == 0 || request.namespace in ['gpus', ", "the admission policy permits it in the release's namespace")
}

// A Job can't be changed: with another template it has another name, and with the same one the same.
func TestGrantKeysJobHasANameOfItsTemplate(t *testing.T) {
	name := func(values ...string) string {
		job := grantKeysJob(objects(t, render(t, "gpus", values...)))
		require.Regexp(t, `^gpuslice-grant-keys-[0-9a-f]{8}$`, job.Name)
		return job.Name
	}
	require.Equal(t, name(), name(`agent.config={"device-split-count":4}`))
	for _, values := range []string{`image.tag="0.2.0"`, `scheduler.tolerations=[{"operator":"Exists"}]`, `imagePullSecrets=[{"name":"pull"}]`, `apiServer.host="192.0.2.1"`} {
		require.NotEqual(t, name(), name(values), values)
	}
}

// What is rendered follows only from the values, so GitOps tools see no difference.
func TestRenderedTwice(t *testing.T) {
	for variant, values := range variants {
		t.Run(variant, func(t *testing.T) {
			first := render(t, "gpus", values...)
			rendered.Clear()
			require.Equal(t, first, render(t, "gpus", values...))
		})
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
			if job := grantKeysJob(found); job != nil {
				for _, arg := range job.Spec.Template.Spec.Containers[0].Args {
					if name, is := strings.CutPrefix(arg, "--secret="); is {
						there["Secret/"+name] = true
					} else if name, is := strings.CutPrefix(arg, "--config-map="); is {
						there["ConfigMap/"+name] = true
					}
				}
			}
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
				if job := grantKeysJob(found); job != nil && labels.SelectorFromSet(selector).Matches(labels.Set(job.Spec.Template.Labels)) {
					n++
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
