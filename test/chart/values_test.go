//go:build root

package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuslice/gpuslice/scheduler/plugin"
	"github.com/gpuslice/gpuslice/test/golden"
)

// value is one of values.yaml.
type value struct {
	path    string // agent.paths.state
	comment string
	node    *yaml.Node
	fields  []value // of a map that has some
}

// values reads values.yaml. Every value has a comment that begins with "-- ".
func values(t *testing.T) []value {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	require.NoError(t, err)
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal(data, &document))
	return fieldsOf(t, "", document.Content[0])
}

func fieldsOf(t *testing.T, prefix string, of *yaml.Node) (fields []value) {
	t.Helper()
	for i := 0; i < len(of.Content); i += 2 {
		key, node := of.Content[i], of.Content[i+1]
		v := value{path: prefix + key.Value, node: node}
		// What stands in front of a blank line belongs to the file.
		comment := key.HeadComment[strings.LastIndex(key.HeadComment, "\n\n")+1:]
		var words []string
		for line := range strings.Lines(comment) {
			words = append(words, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
		}
		text, ok := strings.CutPrefix(strings.TrimSpace(strings.Join(words, " ")), "-- ")
		if !strings.Contains(v.path, ".rollingUpdate") && !strings.HasSuffix(v.path, ".type") && !opaque[prefix] {
			require.True(t, ok, "values.yaml: %s has no comment that begins with --: %q", v.path, comment)
		}
		v.comment = text
		if node.Kind == yaml.MappingNode && len(node.Content) > 0 && node.Style != yaml.FlowStyle && !opaque[v.path+"."] {
			v.fields = fieldsOf(t, v.path+".", node)
		}
		fields = append(fields, v)
	}
	return fields
}

// opaque are maps with fields of Kubernetes: the templates that use them read them.
var opaque = map[string]bool{
	"discovery.nodeSelector.": true, "discovery.resources.": true,
	"agent.updateStrategy.": true, "agent.resources.": true, "scheduler.resources.": true, "webhook.resources.": true, "verify.resources.": true,
	"agent.seccompProfile.": true, "agent.appArmorProfile.": true,
}

// open are maps that have other fields than those that values.yaml shows.
var open = []string{"agent.config"}

// choices are the values that there are.
var choices = map[string][]any{
	"image.pullPolicy":          {"Always", "IfNotPresent", "Never"},
	"agent.driver.access":       {"runtimeClass", "privileged", "none"},
	"scheduler.mode":            {"plugin", "extender"},
	"webhook.foreignSchedulers": {"deny", "leave"},
	"admission.privilegedPods":  {"warn", "deny", "off"},
	"webhook.failurePolicy":     {"Fail", "Ignore"},
	"runtimeClass.create":       {"auto", true, false},
}

const (
	absolute   = `^/[^:,]*[^/:,]$`
	extended   = `^(-|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$`
	name       = `^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	duration   = `^([0-9]+(ms|s|m|h))+$`
	maxReplica = 9
)

// patterns are what strings look like.
var patterns = map[string]string{
	"agent.paths.state": absolute, "agent.paths.library": absolute, "agent.paths.nriSocket": absolute, "agent.paths.kubelet": absolute,
	"barrier.containerdConfig": absolute,
	"agent.driver.libraryDir":  `^(/[^:,]*[^/:,])?$`, "agent.driver.runtimeClassName": name,
	"resourceNames.count": strings.Replace(extended, "-|", "", 1), "resourceNames.memory": extended, "resourceNames.memoryPercentage": extended, "resourceNames.cores": extended,
	"resourceNames.priority": extended, "resourceNames.vcudaCore": extended, "resourceNames.vcudaMemory": extended,
	"image.repository": `^[^\s@]+$`, "image.digest": `^(sha256:[0-9a-f]{64})?$`, "image.tag": `^[A-Za-z0-9_.-]*$`,
	"nameOverride": name, "fullnameOverride": name, "namespaceOverride": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", "scheduler.name": name, "webhook.runtimeClass": name, "grantKey.existingSecret": name, "grantKey.existingConfigMap": name,
	"webhook.certificate.existingSecret": name, "gpuOperator.namespace": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "runtimeClass.handler": name,
	"webhook.url": `^(https://[^/\s]+/?)?$`, "scheduler.extenderListen": `^[^:\s]+:[0-9]+$`,
	"monitoring.podMonitor.interval": duration, "monitoring.schedulerMonitor.interval": duration,
}

// ranges are the least and the greatest of numbers.
var ranges = map[string][2]int{
	"agent.metricsPort": {0, 65535}, "agent.healthPort": {1, 65535}, "scheduler.debugPort": {0, 65535}, "webhook.port": {1024, 65535}, "apiServer.port": {1, 65535},
	"revisionHistoryLimit": {0, 100}, "scheduler.replicas": {1, maxReplica}, "webhook.replicas": {1, maxReplica}, "scheduler.percentageOfNodesToScore": {0, 100}, "scheduler.weight": {1, 100}, "webhook.timeoutSeconds": {1, 30},
}

// byChart are options of the agent that follow from other values.
var byChart = []string{
	"node-name", "state-dir", "library-dir", "library", "nri-socket", "pod-resources-socket", "nvml-library", "cdi-spec-dirs", "device-plugin-dir",
	"resource-name", "grant-public-key-file", "health-address", "metrics-address", "kubernetes-api", "kubeconfig", "node-condition",
}

type schema = map[string]any

// schemaOf is the JSON schema of values.
func schemaOf(t *testing.T, fields []value, d definitions) schema {
	properties := schema{}
	for _, v := range fields {
		key := v.path[strings.LastIndexByte(v.path, '.')+1:]
		s := schema{}
		if v.comment != "" {
			s["description"] = v.comment
		}
		switch {
		case slices.Contains(open, v.path):
			s["type"], s["properties"], s["additionalProperties"] = "object", agentOptions(t), false
		case typeOf(v.path) != nil:
			for k, nested := range d.of(t, typeOf(v.path)) {
				s[k] = nested
			}
			if s["$ref"] != nil { // which ignores what is beside it
				s["allOf"] = []any{schema{"$ref": s["$ref"]}}
				delete(s, "$ref")
			}
		case v.path == "agent.nodeConfig":
			for k, nested := range nodeConfig(t, d) {
				s[k] = nested
			}
		case v.fields != nil:
			for k, nested := range schemaOf(t, v.fields, d) {
				s[k] = nested
			}
		case choices[v.path] != nil:
			s["enum"] = choices[v.path]
		default:
			s["type"] = map[string]string{"!!map": "object", "!!seq": "array", "!!str": "string", "!!int": "integer", "!!bool": "boolean"}[v.node.Tag]
			require.NotEmpty(t, s["type"], "%s is a %s", v.path, v.node.Tag)
		}
		if p := patterns[v.path]; p != "" {
			s["pattern"] = p
		}
		if r, ok := ranges[v.path]; ok {
			s["minimum"], s["maximum"] = r[0], r[1]
		}
		if v.path == "agent.paths.cdi" {
			s["items"], s["minItems"] = schema{"type": "string", "pattern": absolute}, 1
		}
		properties[key] = s
	}
	return schema{"type": "object", "additionalProperties": false, "properties": properties}
}

// agentOptions are the options of the agent that values may have, by the agent's own schema.
func agentOptions(t *testing.T) map[string]any {
	data, err := os.ReadFile("../../install/agent.schema.json")
	require.NoError(t, err)
	var agent struct{ Properties map[string]any }
	require.NoError(t, json.Unmarshal(data, &agent))
	for _, option := range byChart {
		_, known := agent.Properties[option]
		require.True(t, known, "the agent has no option %s", option)
		delete(agent.Properties, option)
	}
	return agent.Properties
}

// The schema follows from values.yaml, from the lists above, and from the agent's own schema: `make generate`
// writes it.
func TestSchema(t *testing.T) {
	d := definitions{}
	s := schemaOf(t, values(t), d)
	s["definitions"] = d
	s["$schema"], s["title"] = "http://json-schema.org/draft-07/schema#", "Values of gpuslice's chart"
	s["properties"].(schema)["global"] = schema{"type": "object"} // Helm hands it to every chart
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(s))
	golden.Check(t, filepath.Join(chartDir, "values.schema.json"), data.String())
}

// Invalid values, and values with another effect than their name, are refused before anything is installed.
func TestBadValues(t *testing.T) {
	sets := map[string]string{
		`agents.enabled=true`:                         "agents",
		`agent.pathes={"state":"/run"}`:               "pathes",
		`agent.paths.state="run/gpuslice"`:            "state",
		`agent.paths.cdi=[]`:                          "cdi",
		`agent.paths.cdi=["/etc/cdi,/tmp"]`:           "cdi",
		`agent.config={"device-splitcount":4}`:        "device-splitcount",
		`agent.config={"device-split-count":"many"}`:  "device-split-count",
		`agent.config={"unscheduled-policy":"give"}`:  "unscheduled-policy",
		`agent.config={"state-dir":"/elsewhere"}`:     "state-dir",
		`agent.driver.access="hostPath"`:              "access",
		`agent.metricsPort=70000`:                     "metricsPort",
		`agent.tolerations={}`:                        "tolerations",
		`scheduler.mode="both"`:                       "mode",
		`scheduler.replicas=0`:                        "replicas",
		`scheduler.percentageOfNodesToScore=101`:      "percentageOfNodesToScore",
		`webhook.url="http://192.0.2.1"`:              "url",
		`webhook.foreignSchedulers="allow"`:           "foreignSchedulers",
		`admission.privilegedPods="allow"`:            "privilegedPods",
		`webhook.timeoutSeconds=31`:                   "timeoutSeconds",
		`grantKey.enabled="yes"`:                      "enabled",
		`image.digest="latest"`:                       "digest",
		`resourceNames.count="-"`:                     "count",
		`resourceNames.memory="memory"`:               "memory",
		`monitoring.podMonitor.interval="30 seconds"`: "interval",
		`runtimeClass.create="maybe"`:                 "create",

		`agent.config={"core-policy":"always"}`:                                        "core-policy",
		`agent.updateStrategy.type="Foo"`:                                              "type",
		`agent.updateStrategy.rollingUpdate.maxUnavailable="many"`:                     "maxUnavailable",
		`agent.resources.limits.memory="foo"`:                                          "memory",
		`agent.resources.limit={"memory":"1Gi"}`:                                       "limit",
		`agent.seccompProfile.type="Default"`:                                          "type",
		`agent.appArmorProfile.type="Off"`:                                             "type",
		`agent.seLinuxOptions={"types":"spc_t"}`:                                       "types",
		`agent.tolerations=[{"operator":"Exist"}]`:                                     "operator",
		`agent.tolerations=[{"effect":"NoStart"}]`:                                     "effect",
		`agent.nodeSelector={"gpu":true}`:                                              "gpu",
		`agent.podAnnotations={"a":1}`:                                                 "podAnnotations",
		`agent.affinity={"nodeAffinty":{}}`:                                            "nodeAffinty",
		`agent.extraEnv=[{"value":"b"}]`:                                               "name",
		`agent.extraVolumes=[{"name":"x","hostpath":{"path":"/x"}}]`:                   "hostpath",
		`agent.extraVolumeMounts=[{"name":"x"}]`:                                       "mountPath",
		`agent.extraArgs="--log-level=debug"`:                                          "extraArgs",
		`agent.nodeConfig={"nodeconfig":[{"name":"n","devicesplitcount":0}]}`:          "devicesplitcount",
		`agent.nodeConfig={"nodeconfig":[{"name":"n","devicesplitcounts":4}]}`:         "devicesplitcounts",
		`agent.nodeConfig={"nodes":[]}`:                                                "nodes",
		`scheduler.settings={"foo":1}`:                                                 "foo",
		`scheduler.settings={"gpupolicy":"binpack"}`:                                   "gpupolicy",
		`scheduler.settings={"gpuPolicy":"binpak"}`:                                    "gpuPolicy",
		`scheduler.settings={"nodePolicy":"mutex"}`:                                    "nodePolicy",
		`scheduler.settings={"weights":"slot=1"}`:                                      "weights",
		`scheduler.settings={"defaults":{"cores":101}}`:                                "cores",
		`scheduler.settings={"groupTimeout":"soon"}`:                                   "groupTimeout",
		`scheduler.settings={"scoreWithPreferences":0}`:                                "scoreWithPreferences",
		`scheduler.settings={"legacyMetrics":["gpu-manager"]}`:                         "legacyMetrics",
		`scheduler.settings={"gpuQuota":"gpuquota"}`:                                   "gpuQuota",
		`scheduler.settings={"grantPrivateKeyFile":"/x"}`:                              "grantPrivateKeyFile",
		`scheduler.resources.requests.cpu="a lot"`:                                     "cpu",
		`webhook.namespaceSelector={"matchExpressions":[{"key":"a","operator":"Is"}]}`: "operator",
		`networkPolicy.from=[{"ipblock":{"cidr":"10.0.0.0/8"}}]`:                       "ipblock",
		`admission.writers=[1]`:                                                        "writers",
		`monitoring.dashboard.labels={"a":1}`:                                          "labels",
		`imagePullSecrets=["pull"]`:                                                    "imagePullSecrets",
		`commonLabels={"a":1}`:                                                         "commonLabels",
	}
	for set, want := range sets {
		_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.36.3", "--set-json", set)
		require.Error(t, err, set)
		require.Contains(t, errs, "don't meet the specifications of the schema", set)
		require.Contains(t, errs, want, set)
	}
}

// A quantity of null is none: of a limit of null the API server would make 0, and refuse the requests.
func TestNoQuantityOfNull(t *testing.T) {
	for _, tc := range []struct {
		values string
		want   corev1.ResourceRequirements
	}{
		{`agent.resources.limits.cpu=null`, corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{"memory": resource.MustParse("512Mi")},
			Requests: corev1.ResourceList{"cpu": resource.MustParse("50m"), "memory": resource.MustParse("64Mi")},
		}},
		{`agent.resources={"limits":{"memory":null,"cpu":null},"requests":{"memory":null}}`, corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("50m")},
		}},
		{`agent.resources=null`, corev1.ResourceRequirements{}},
	} {
		got := agentPod(t, tc.values).Containers[0].Resources
		for _, lists := range [][2]corev1.ResourceList{{tc.want.Limits, got.Limits}, {tc.want.Requests, got.Requests}} {
			require.Len(t, lists[1], len(lists[0]), tc.values)
			for name, want := range lists[0] {
				require.Zero(t, want.Cmp(lists[1][name]), "%s: %s", tc.values, name)
			}
		}
	}
}

// What the scheduler accepts, the schema accepts: every word and field of the settings, and what Kubernetes' types have.
func TestGoodValues(t *testing.T) {
	for _, set := range []string{
		`scheduler.settings={"gpuPolicy":"numa,binpack","nodePolicy":"topology-aware, spread","weights":"slot=1,core=2,memory=0","groupTimeout":"90s","groupTopology":["a/b"],"groupPreemption":true,"legacyMetrics":["hami"],"gpuQuota":"a/b","scoreWithPreferences":100,"vcudaLimitsWholeGPUs":true,"nodeSelector":{"a":"b"},"defaults":{"memoryMiB":1,"cores":100,"count":2,"memoryFactor":1}}`,
		`agent.updateStrategy={"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}`,
		`agent.resources={"limits":{"memory":"1.5Gi"},"requests":{"cpu":0.5,"memory":"128e6"}}`,
		`agent.extraEnv=[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}]`,
		`agent.extraVolumes=[{"name":"x","projected":{"sources":[{"configMap":{"name":"c","items":[{"key":"k","path":"p"}]}}]}}]`,
		`agent.extraVolumeMounts=[{"name":"x","mountPath":"/x","readOnly":true,"mountPropagation":"HostToContainer"}]`,
		`agent.affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}},"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"podAffinityTerm":{"topologyKey":"a","labelSelector":{"matchLabels":{"a":"b"}}}}]}}`,
		`agent.tolerations=[{"key":"a","operator":"Equal","value":"b","effect":"NoExecute","tolerationSeconds":5}]`,
		`agent.tolerations=[{"key":"a","operator":"Gt","value":"5"},{"key":"a","operator":"Lt","value":"5"},{"operator":"Exists"},{"key":"a"}]`,
		`agent.resources.limits.cpu=null`,
		`scheduler.resources={"limits":{"memory":null,"cpu":null},"requests":{"cpu":null}}`,
		`webhook.resources=null`,
		`agent.seccompProfile={"type":"Localhost","localhostProfile":"gpuslice/agent.json"}`,
		`networkPolicy={"enabled":true,"from":[{"ipBlock":{"cidr":"10.0.0.0/8"}},{"namespaceSelector":{},"podSelector":{"matchLabels":{"a":"b"}}}]}`,
	} {
		require.NotEmpty(t, objects(t, render(t, "gpus", set)))
		if settings, is := strings.CutPrefix(set, "scheduler.settings="); is {
			_, err := plugin.ParseArgs(raw(t, strings.Replace(settings, "{", `{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs",`, 1)))
			require.NoError(t, err)
		}
	}
}

// A scheduler without a name would be kube-scheduler's default one, a second of it; where none of ours is installed, or it is
// asked by the cluster's own, pods stay with that.
func TestSchedulersName(t *testing.T) {
	for name, tc := range map[string]struct {
		values  []string
		refused bool
	}{
		"plugin":                  {[]string{`scheduler.name=""`}, true},
		"plugin, null":            {[]string{`scheduler.name=null`}, true},
		"plugin, without webhook": {[]string{`scheduler.name=""`, `webhook.enabled=false`}, true},
		"extender":                {[]string{`scheduler.name=""`, `scheduler.mode="extender"`}, false},
		"no scheduler":            {[]string{`scheduler.name=""`, `scheduler.enabled=false`}, false},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"template", "gpuslice", chartDir, "--kube-version", "1.36.3"}
			for _, v := range tc.values {
				args = append(args, "--set-json", v)
			}
			_, errs, err := helm(t, args...)
			if !tc.refused {
				require.NoError(t, err, errs)
				return
			}
			require.Error(t, err)
			require.Contains(t, errs, "scheduler.name is empty")
			require.Contains(t, errs, "scheduler.mode=extender", "what to do")
		})
	}
}

// Older clusters are refused, on which half of the admission would not be there.
func TestOldKubernetes(t *testing.T) {
	_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.29.9")
	require.Error(t, err)
	require.Contains(t, errs, "requires kubeVersion: >=1.30")
}

// Without the API server's check of what of a status is written, an agent would have the status of all ResourceClaims.
func TestOldKubernetesWithDRA(t *testing.T) {
	for version, refused := range map[string]bool{"1.35.9": true, "1.35.9-eks-1": true, "1.36.0-eks-1": false, "1.36.0": false, "1.37.1": false} {
		_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", version, "--set", "dra.enabled=true")
		if !refused {
			require.NoError(t, err, "%s: %s", version, errs)
			continue
		}
		require.Error(t, err, version)
		require.Contains(t, errs, "this cluster has Kubernetes v1.35.9")
		require.Contains(t, errs, "set dra.enabled=false", "what to do")
	}
}

// Without nodes with DRA no scheduler would place the pods, and only the webhook writes ResourceClaims.
func TestClaimNamespacesNeedDRA(t *testing.T) {
	for _, missing := range []string{"dra.enabled", "webhook.enabled"} {
		_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.36.3", "--set", "dra.enabled=true,dra.claimNamespaces={a},"+missing+"=false")
		require.Error(t, err)
		require.Contains(t, errs, "dra.claimNamespaces is set")
	}
}

// The webhook gets the namespaces and a token, and the API server is informed that a dry run changes nothing.
func TestClaimNamespaces(t *testing.T) {
	for _, values := range [][]string{nil, append([]string{`webhook.certificate={"existingSecret":"tls","caBundle":"Y2E="}`}, variants["claims"]...)} {
		claims := len(values) > 0
		for _, o := range objects(t, render(t, "gpus", values...)) {
			switch o := o.(type) {
			case *appsv1.Deployment:
				if o.Name == "gpuslice-webhook" {
					args := o.Spec.Template.Spec.Containers[0].Args
					require.Equal(t, claims, slices.Contains(args, "--claim-namespace=team-a") && slices.Contains(args, "--claim-namespace=team-b"))
					require.True(t, *o.Spec.Template.Spec.AutomountServiceAccountToken)
				}
			case *admissionregistrationv1.MutatingWebhookConfiguration:
				want := admissionregistrationv1.SideEffectClassNone
				if claims {
					want = admissionregistrationv1.SideEffectClassNoneOnDryRun
				}
				require.Equal(t, want, *o.Webhooks[0].SideEffects)
			}
		}
	}
}

// table is docs/INSTALL.md's of the values.
func table(fields []value) string {
	var rows strings.Builder
	rows.WriteString("| value | default | what it is |\n|---|---|---|\n")
	var add func([]value)
	add = func(fields []value) {
		for _, v := range fields {
			comment := v.comment
			if allowed := choices[v.path]; allowed != nil && !strings.Contains(comment, fmt.Sprint(allowed[1])) {
				comment += fmt.Sprintf(" One of %v.", allowed)
			}
			if v.fields != nil {
				if comment != "" {
					fmt.Fprintf(&rows, "| **`%s`** | | %s |\n", v.path, cell(comment))
				}
				add(v.fields)
				continue
			}
			fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", v.path, defaultOf(v.node), cell(comment))
		}
	}
	add(fields)
	return rows.String()
}

// cell is text in a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(text)
}

// defaultOf is a default as JSON.
func defaultOf(n *yaml.Node) string {
	var v any
	if err := n.Decode(&v); err != nil {
		return err.Error()
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return "`" + string(data) + "`"
}

// The table in docs/INSTALL.md is values.yaml's: `make generate` writes it.
func TestValuesInTheDocs(t *testing.T) {
	const file, begin, end = "../../docs/INSTALL.md", "<!-- values -->\n", "<!-- end of values -->"
	golden.Section(t, file, begin, end, "\n"+table(values(t))+"\n")
}
