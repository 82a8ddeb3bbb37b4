package migrate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/golden"
)

var (
	system = []string{"gpuslice-system"}
	where  = Where{Ours: system}
)

// recorded reads manifests. edit changes their text first.
func recorded(t *testing.T, file string, edit ...string) *Inventory {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	for i := 0; i < len(edit); i += 2 {
		require.Contains(t, string(data), edit[i])
		data = []byte(strings.ReplaceAll(string(data), edit[i], edit[i+1]))
	}
	in := &Inventory{}
	maps := map[string]map[string]string{}
	in.ConfigMap = func(namespace, name string) (map[string]string, error) {
		if data, has := maps[namespace+"/"+name]; has {
			return data, nil
		}
		return nil, fmt.Errorf("ConfigMap %s/%s: not found", namespace, name)
	}
	reader := kyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return in
		}
		require.NoError(t, err)
		var kind metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal(document, &kind))
		switch kind.Kind {
		case "DaemonSet":
			d := decode[appsv1.DaemonSet](t, document)
			in.DaemonSets = append(in.DaemonSets, d)
			in.AddWorkload("DaemonSet", &d, d.Spec.Template.Spec)
		case "Deployment":
			d := decode[appsv1.Deployment](t, document)
			in.Deployments = append(in.Deployments, d)
			in.AddWorkload("Deployment", &d, d.Spec.Template.Spec)
		case "MutatingWebhookConfiguration":
			in.Webhooks = append(in.Webhooks, decode[admissionv1.MutatingWebhookConfiguration](t, document))
		case "ConfigMap":
			m := decode[v1.ConfigMap](t, document)
			maps[m.Namespace+"/"+m.Name] = m.Data
		default:
			require.Fail(t, kind.Kind)
		}
	}
}

func decode[T any](t *testing.T, document []byte) (to T) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict(document, &to))
	return to
}

// gpuslice adds its agents with a selector, and its webhook.
func (in *Inventory) gpuslice(selector map[string]string, webhook bool) *Inventory {
	agent := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: system[0], Name: "gpuslice-agent", UID: "agent", Labels: map[string]string{labelName: "gpuslice", labelComponent: "agent"},
	}}
	agent.Spec.Template.Spec.NodeSelector = selector
	in.DaemonSets = append(in.DaemonSets, agent)
	in.AddWorkload("DaemonSet", &agent, agent.Spec.Template.Spec)
	if webhook {
		in.Webhooks = append(in.Webhooks, admissionv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "gpuslice"}, Webhooks: []admissionv1.MutatingWebhook{{Name: ourWebhook}},
		})
	}
	return in
}

// config gives the agents their configuration.
func (in *Inventory) config(text string) *Inventory {
	spec := &in.DaemonSets[len(in.DaemonSets)-1].Spec.Template.Spec
	spec.Volumes = []v1.Volume{{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "gpuslice-agent"}}}}}
	before := in.ConfigMap
	in.ConfigMap = func(namespace, name string) (map[string]string, error) {
		if namespace == system[0] && name == "gpuslice-agent" {
			return map[string]string{"agent.yaml": text}, nil
		}
		return before(namespace, name)
	}
	return in
}

// flag gives the agents a flag.
func (in *Inventory) flag(flag string) *Inventory {
	in.DaemonSets[len(in.DaemonSets)-1].Spec.Template.Spec.Containers = []v1.Container{{Args: []string{flag}}}
	return in
}

var migrated = map[string]string{api.LabelMigrated: "true"}

// example is a pod of HAMi's or gpu-manager's users, as test/e2e/migration has it, on a node.
func example(t *testing.T, file, name, node string, owned bool) v1.Pod {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../../test/e2e/migration", file))
	require.NoError(t, err)
	p := decode[v1.Pod](t, data)
	p.Namespace, p.Name, p.Spec.NodeName, p.Status.Phase = "team", name, node, v1.PodRunning
	p.Spec.SchedulerName = "hami-scheduler"
	if owned {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r", Controller: &yes}}
	}
	return p
}

func labelled(name string, labels map[string]string, annotations ...string) v1.Node {
	n := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{}}}
	for i := 0; i < len(annotations); i += 2 {
		n.Annotations[annotations[i]] = annotations[i+1]
	}
	return n
}

func values(t *testing.T, p *Plan) string {
	t.Helper()
	data, err := os.ReadFile("../../../install/charts/gpuslice/values.schema.json")
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(data, &schema))
	requireKnown(t, schema, p.Values, "values")
	text, err := yaml.Marshal(p.Values)
	require.NoError(t, err)
	return string(text)
}

// requireKnown checks that the chart has the values.
func requireKnown(t *testing.T, schema map[string]any, value any, path string) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	object, is := value.(map[string]any)
	if !is || properties == nil {
		return
	}
	for key, value := range object {
		require.Contains(t, properties, key, path)
		requireKnown(t, properties[key].(map[string]any), value, path+"."+key)
	}
}

const register = `[{"id":"GPU-a","count":10,"devmem":24576,"devcore":100,"type":"NVIDIA A10","health":true},{"id":"GPU-b","count":10,"devmem":24576,"devcore":100,"type":"NVIDIA A10","health":true}]`

func TestPlanForHAMisDefaults(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml")
	on := map[string]string{"gpu": "on"}
	in.Nodes = []v1.Node{
		labelled("b", on), labelled("a", on, api.AnnotationHAMiRegister, register), labelled("cpu", nil),
		labelled("moved", migrated, api.AnnotationMigration, `{"from":"hami","done":true}`),
		labelled("half", nil, api.AnnotationMigration, `{"from":"hami","cordoned":true}`),
	}
	mistaken := example(t, "hami/cores.yaml", "mistaken", "a", false)
	mistaken.Spec.Containers[0].Resources.Limits["nvidia.com/gpucores"] = resource.MustParse("120")
	ended := example(t, "hami/cores.yaml", "ended", "a", true)
	ended.Status.Phase = v1.PodFailed
	waits := example(t, "hami/memory-mib.yaml", "waits", "", true)
	plain := v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Spec: v1.PodSpec{NodeName: "a", Containers: []v1.Container{{Name: "main"}}}}
	in.Pods = []v1.Pod{
		example(t, "hami/memory-mib.yaml", "memory", "a", true), example(t, "hami/several-gpus.yaml", "several", "a", false),
		example(t, "hami/use-gputype.yaml", "typed", "b", true), mistaken, ended, waits, plain,
	}
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Equal(t, "kube-system/hami-device-plugin", p.Release)
	assert.Equal(t, "2.10.0", p.Version)
	assert.Equal(t, `admission:
  writers:
  - system:serviceaccount:kube-system:hami-device-plugin
  - system:serviceaccount:kube-system:hami-scheduler
agent:
  config:
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
`, values(t, p), "HAMi's other defaults are gpuslice's")
	assert.Equal(t, []string{
		`the entry "your-node-name" of HAMi's config.json is left out: the cluster has no such node`,
		"pods that wait for hami-scheduler stay with it: delete them after gpuslice is installed, and their controllers create them again (team/waits)",
	}, p.Notes)
	assert.Equal(t, []Node{
		{"a", StateServed, false, 2, []Pod{{"team/memory", true}, {"team/mistaken", false}, {"team/several", false}}},
		{"b", StateServed, false, 0, []Pod{{"team/typed", true}}}, {Name: "half", State: StateSwitching, Unserved: true}, {Name: "moved", State: StateSwitched},
	}, p.Nodes)
	assert.Equal(t, []Refused{{"team/mistaken", `container "main": nvidia.com/gpucores: 120: is percent of each GPU: request at most 100, and more GPUs by nvidia.com/gpu`}}, p.Refused)
	assert.Equal(t, []string{
		"kubectl gpuslice migrate hami --values > values.yaml",
		"helm install gpuslice install/charts/gpuslice --namespace gpuslice-system --create-namespace --values values.yaml",
		"kubectl get mutatingwebhookconfiguration hami-webhook -o yaml > hami-webhook.yaml",
		"kubectl delete mutatingwebhookconfiguration hami-webhook",
		"kubectl gpuslice migrate hami --node NODE, or --all; back: --undo",
		"helm uninstall hami --namespace kube-system",
	}, p.Commands)
	require.Len(t, p.Problems, 1)
	assert.Contains(t, p.Problems[0], "gpuslice is not installed in namespace gpuslice-system")
	assert.Equal(t, []string{"a", "b", "half"}, switching(t, p, false))
	assert.Equal(t, []string{"half", "moved"}, switching(t, p, true))
	n, err := p.Node("a")
	require.NoError(t, err)
	assert.Equal(t, p.Nodes[0], n)
	_, err = p.Node("cpu")
	require.EqualError(t, err, "node cpu is unknown: it does not exist, or it is neither a node of HAMi nor one that was migrated from it")
}

func switching(t *testing.T, p *Plan, back bool) (all []string) {
	t.Helper()
	nodes, _, err := p.ToSwitch(back)
	require.NoError(t, err)
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return all
}

func TestValuesOfHAMi(t *testing.T) {
	node := labelled("gpu-1", map[string]string{"gpu": "on"})
	for name, test := range map[string]struct {
		edit  []string
		want  string   // in the values
		notes []string // besides
	}{
		"names": {edit: []string{"resourceMemoryName: nvidia.com/gpumem", "resourceMemoryName: example.com/mem"}, want: "resourceNames:\n  memory: example.com/mem\n"},
		"sharing": {edit: []string{"deviceSplitCount: 10", "deviceSplitCount: 4", "deviceMemoryScaling: 1", "deviceMemoryScaling: 1.8", "deviceCoreScaling: 1", "deviceCoreScaling: 2"},
			want: "device-cores-scaling: 2\n    device-memory-scaling: 1.8\n    device-split-count: 4\n"},
		"flags":          {edit: []string{"--mig-strategy=none", "--device-split-count=4, --device-memory-scaling=1.8"}, want: "device-memory-scaling: 1.8\n    device-split-count: 4\n"},
		"an old release": {edit: []string{"- {name: device-config,", "- {name: other,"}, notes: []string{"before HAMi 2.5"}},
		"no core limit":  {edit: []string{"--disable-core-limit=false", "--disable-core-limit=true"}, want: "core-policy: disable\n"},
		"a core policy":  {edit: []string{"gpuCorePolicy: default", "gpuCorePolicy: force"}, want: "core-policy: force\n"},
		"a MIG strategy": {edit: []string{"--mig-strategy=none", "--mig-strategy=mixed"}, want: "mig-strategy: mixed\n"},
		"defaults": {edit: []string{"defaultMemory: 0", "defaultMemory: 2000", "defaultCores: 0", "defaultCores: 30", "defaultGPUNum: 1", "defaultGPUNum: 2", "memoryFactor: 1", "memoryFactor: 256"},
			want: "defaults:\n      cores: 30\n      count: 2\n      memoryFactor: 256\n      memoryMiB: 2000\n"},
		"policies": {edit: []string{"node-scheduler-policy=binpack", "node-scheduler-policy=spread", "gpu-scheduler-policy=spread", "gpu-scheduler-policy=numa,binpack"},
			want: "gpuPolicy: numa,binpack\n    legacyMetrics:\n    - hami\n    nodePolicy: spread\n    nodeSelector:\n      gpuslice.io/migrated: \"true\"\n"},
		"an unknown policy": {edit: []string{"gpu-scheduler-policy=spread", "gpu-scheduler-policy=fastest"}, notes: []string{"--gpu-scheduler-policy=fastest has no counterpart"}},
		"nodes": {edit: []string{"- --debug", "- --node-label-selector=gpu=on,pool=a"}, want: "    - hami\n    nodeSelector:\n      gpuslice.io/migrated: \"true\"\n",
			notes: []string{"--node-label-selector=gpu=on,pool=a is left out: gpuslice's pods get the nodes that are switched"}},
		"nodes by variables": {edit: []string{"{name: HAMI_NODELOCK_EXPIRE, value: 5m}", "{name: NODE_SELECTOR_USAGE, value: gpu}"},
			notes: []string{"the variable NODE_SELECTOR_USAGE=gpu is left out"}},
		"the default scheduler": {edit: []string{"force-overwrite-default-scheduler=true", "force-overwrite-default-scheduler=false"}, notes: []string{"--force-overwrite-default-scheduler=false"}},
		"a runtime class":       {edit: []string{`runtimeClassName: ""`, "runtimeClassName: nvidia"}, want: "webhook:\n  runtimeClass: nvidia\n"},
		"the plugin's runtime":  {edit: []string{"hostPID: true", "runtimeClassName: nvidia-cdi"}, want: "driver:\n    runtimeClassName: nvidia-cdi\n"},
		"exempt namespaces": {edit: []string{"  namespaceSelector:\n    matchExpressions: [", "  namespaceSelector:\n    matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [istio-system]}, "},
			want: "webhook:\n  namespaceSelector:\n    matchExpressions:\n    - key: kubernetes.io/metadata.name\n      operator: NotIn\n      values:\n      - istio-system\n"},
		"a node": {edit: []string{"your-node-name", "gpu-1", `"devicememoryscaling": 1,`, `"devicememoryscaling": 1.5,`},
			want: "nodeconfig:\n    - devicememoryscaling: 1.5\n      devicesplitcount: 10\n      enablegetpreferredallocation: false\n"},
		"all nodes' memory": {edit: []string{"preConfiguredDeviceMemory: 0", "preConfiguredDeviceMemory: 131072", "your-node-name", "gpu-1", "enableNumaTopology: false", "enableNumaTopology: true"},
			want: "preconfigureddevicememory: 131072\n    - enablenumatopology: true\n      nameglob: '*'\n      preconfigureddevicememory: 131072\n"},
	} {
		t.Run(name, func(t *testing.T) {
			in := recorded(t, "hami-2.10.0.yaml", test.edit...)
			in.Nodes = []v1.Node{node}
			p, err := Make(HAMi, in, where)
			require.NoError(t, err)
			assert.Contains(t, values(t, p), test.want)
			for _, note := range test.notes {
				assert.Contains(t, strings.Join(p.Notes, "\n"), note)
			}
			if config, has := p.Values["agent"].(map[string]any)["nodeConfig"]; has {
				text, err := yaml.Marshal(config)
				require.NoError(t, err)
				text, err = yaml.YAMLToJSON(text)
				require.NoError(t, err)
				_, _, err = nodeconfig.DecodeFor(text, "gpu-1")
				require.NoError(t, err, "the agent reads it")
			}
		})
	}
}

// test/chart renders the chart with these files.
func TestValuesFiles(t *testing.T) {
	for file, test := range map[string]struct {
		source Source
		edit   []string
	}{
		"hami":    {source: HAMi},
		"tencent": {source: Tencent},
		"hami-all": {source: HAMi, edit: []string{
			"resourceMemoryName: nvidia.com/gpumem", "resourceMemoryName: example.com/mem", "deviceSplitCount: 10", "deviceSplitCount: 4", "deviceMemoryScaling: 1", "deviceMemoryScaling: 1.8",
			"deviceCoreScaling: 1", "deviceCoreScaling: 2", "gpuCorePolicy: default", "gpuCorePolicy: force", "--mig-strategy=none", "--mig-strategy=mixed",
			"defaultMemory: 0", "defaultMemory: 2000", "defaultCores: 0", "defaultCores: 30", "defaultGPUNum: 1", "defaultGPUNum: 2", "memoryFactor: 1", "memoryFactor: 256",
			"node-scheduler-policy=binpack", "node-scheduler-policy=spread", "gpu-scheduler-policy=spread", "gpu-scheduler-policy=numa,binpack",
			`runtimeClassName: ""`, "runtimeClassName: nvidia", "hostPID: true", "runtimeClassName: nvidia-cdi",
			"  namespaceSelector:\n    matchExpressions: [", "  namespaceSelector:\n    matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [istio-system]}, ",
			"  objectSelector:\n    matchExpressions: [", "  objectSelector:\n    matchLabels: {a: b}\n    matchExpressions: [",
			"preConfiguredDeviceMemory: 0", "preConfiguredDeviceMemory: 131072", "your-node-name", "gpu-1", "enableNumaTopology: false", "enableNumaTopology: true",
		}},
	} {
		in := recorded(t, map[Source]string{HAMi: "hami-2.10.0.yaml", Tencent: "gpu-manager.yaml"}[test.source], test.edit...)
		in.Nodes = []v1.Node{labelled("gpu-1", nil)}
		p, err := Make(test.source, in, where)
		require.NoError(t, err)
		golden.Check(t, filepath.Join("testdata", "values-"+file+".yaml"), values(t, p))
	}
}

func TestPlanForGPUManager(t *testing.T) {
	in := recorded(t, "gpu-manager.yaml")
	n := labelled("a", map[string]string{"nvidia-device-enable": "enable"})
	n.Status.Capacity = v1.ResourceList{api.ResourceVcudaCore: resource.MustParse("700")}
	in.Nodes, in.Pods = []v1.Node{n}, []v1.Pod{example(t, "gpu-manager/vcuda.yaml", "half", "a", true)}
	p, err := Make(Tencent, in, where)
	require.NoError(t, err)
	assert.Equal(t, `admission:
  writers:
  - system:serviceaccount:kube-system:default
  - system:serviceaccount:kube-system:gpu-manager
agent:
  config:
    legacy-metrics:
    - gpu-manager
    resource-profile: tencent
  nodeSelector:
    gpuslice.io/migrated: "true"
scheduler:
  settings:
    gpuQuota: kube-system/gpuquota
    nodeSelector:
      gpuslice.io/migrated: "true"
`, values(t, p))
	assert.Equal(t, []Node{{"a", StateServed, false, 7, []Pod{{"team/half", true}}}}, p.Nodes)
	assert.Contains(t, p.Differences, Difference{Subject: "--share-mode", Here: "nothing: GPUs are always shared"})
	for _, d := range p.Differences {
		assert.NotContains(t, d.Subject, "--sample-period", "it is not set")
	}
	assert.Contains(t, strings.Join(p.Notes, "\n"), "admission.writers has system:serviceaccount:kube-system:default, an account that other pods of the namespace can have: give gpu-manager its own")
	_, err = Prepare(Tencent, recorded(t, "gpu-manager.yaml").gpuslice(migrated, true), where, false)
	require.ErrorContains(t, err, "has resource-profile hami, and would not offer tencent.com/vcuda-core: set agent.config.resource-profile=tencent")
	w, err := Prepare(Tencent, in.gpuslice(migrated, true).config("resource-profile: tencent"), where, false)
	require.NoError(t, err)
	assert.Equal(t, api.ResourceVcudaCore, w.Count)
	assert.Equal(t, "kubectl delete daemonset gpu-manager-daemonset --namespace kube-system", p.Commands[len(p.Commands)-1])
}

// The tables of docs/MIGRATING.md are read.
func TestDifferences(t *testing.T) {
	hami := differences(HAMi, nil)
	assert.Contains(t, hami, Difference{Subject: "nvidia.com/gpumem: 0", Before: "ignores it: the whole GPU", Here: "refused"})
	assert.Contains(t, hami, Difference{Subject: "CUDA_DISABLE_CONTROL=true", Here: "only in agent.config.disable-control-namespaces", Note: "a tenant can't remove its own limits"})
	for _, d := range append(hami, differences(Tencent, nil)...) {
		assert.NotEmpty(t, d.Here, d.Subject)
		assert.NotContains(t, d.Here+d.Note, "](")
		assert.NotEqual(t, "nvidia.com/use-gputype", d.Subject, "nothing is different")
	}
}

func TestFind(t *testing.T) {
	for name, test := range map[string]struct {
		source Source
		in     *Inventory
		want   string
	}{
		"no HAMi":                  {HAMi, recorded(t, "gpu-manager.yaml"), "HAMi is not found: no DaemonSet has the label app.kubernetes.io/component=hami-device-plugin"},
		"no gpu-manager":           {Tencent, recorded(t, "hami-2.10.0.yaml"), "gpu-manager is not found: there is no DaemonSet gpu-manager-daemonset"},
		"a ConfigMap is missing":   {HAMi, recorded(t, "hami-2.10.0.yaml", "name: hami-scheduler-device, namespace", "name: other, namespace"), "ConfigMap kube-system/hami-scheduler-device: not found"},
		"config.json is damaged":   {HAMi, recorded(t, "hami-2.10.0.yaml", `{"nodeconfig": [`, `{"nodeconfig": [[`), "read HAMi's config.json"},
		"a flag is damaged":        {HAMi, recorded(t, "hami-2.10.0.yaml", "--mig-strategy=none", "--device-split-count=many"), "read --device-split-count=many of HAMi's device plugin"},
		"device-config is damaged": {HAMi, recorded(t, "hami-2.10.0.yaml", "deviceSplitCount: 10", "deviceSplitCount: many"), "read HAMi's device-config.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Make(test.source, test.in, where)
			require.ErrorContains(t, err, test.want)
		})
	}
	two := recorded(t, "hami-2.10.0.yaml")
	two.DaemonSets = append(two.DaemonSets, *two.DaemonSets[0].DeepCopy())
	two.DaemonSets[1].Namespace = "hami"
	_, err := Make(HAMi, two, where)
	require.ErrorContains(t, err, "several times (DaemonSets kube-system/hami-device-plugin, hami/hami-device-plugin): set --namespace")
	p, err := Make(HAMi, two, Where{system, "kube-system"})
	require.NoError(t, err)
	assert.Equal(t, "kube-system/hami-device-plugin", p.Release)
	_, err = Make(HAMi, two, Where{system, "team"})
	require.ErrorContains(t, err, "nvidia-device-plugin in namespace team")
}

func TestPrepare(t *testing.T) {
	fresh := func(edit ...string) *Inventory { return recorded(t, "hami-2.10.0.yaml", edit...) }
	noWebhook := func(in *Inventory) *Inventory {
		in.Webhooks = in.Webhooks[1:]
		return in
	}
	named := fresh().gpuslice(migrated, false)
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: system[0], Labels: map[string]string{labelName: "gpuslice"}}}
	d.Spec.Template.Spec.Containers = []v1.Container{{Args: []string{"webhook", "--scheduler-name=hami-scheduler"}}}
	named.Deployments = append(named.Deployments, d)
	// HAMi's chart excludes namespaces with this label.
	separate := fresh().gpuslice(migrated, true)
	separate.Webhooks[1].Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"hami.io/webhook": "ignore"}}
	ofPods := fresh().gpuslice(migrated, true)
	ofPods.Webhooks[1].Webhooks[0].ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"hami.io/webhook": "ignore"}}
	// The values that migrate prints can have this: HAMi's own selector.
	copied := fresh().gpuslice(migrated, true)
	copied.Webhooks[1].Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"istio-system"}},
	}}
	elsewhere := fresh().gpuslice(migrated, false)
	elsewhere.DaemonSets[1].Namespace = "team"
	using := func(kind, namespace, name string, spec v1.PodSpec) *Inventory {
		in := fresh().gpuslice(migrated, false)
		in.Workloads = append(in.Workloads, Workload{Kind: kind, Namespace: namespace, Name: name, Spec: spec})
		return in
	}
	affinity := v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "gpu", Operator: v1.NodeSelectorOpExists}}}},
	}}}}
	shared := using("DaemonSet", "monitoring", "dcgm-exporter", affinity)
	podUses := fresh().gpuslice(migrated, false)
	podUses.Pods = []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "bare"}, Spec: v1.PodSpec{NodeSelector: map[string]string{"gpu": "on"}}}}
	for name, test := range map[string]struct {
		in   *Inventory
		back bool
		want string // empty: they can be switched
	}{
		"gpuslice is missing":               {in: fresh(), want: "gpuslice is not installed in namespace gpuslice-system"},
		"a tenant's labels":                 {in: elsewhere, want: "gpuslice is not installed"},
		"no webhook of HAMi":                {in: noWebhook(fresh().gpuslice(migrated, true))},
		"no webhook of gpuslice":            {in: fresh().gpuslice(migrated, false), want: "gpuslice's webhook does not exist: upgrade gpuslice with webhook.enabled=true"},
		"no webhook, on the way back":       {in: fresh().gpuslice(migrated, false), back: true},
		"no webhook at all":                 {in: noWebhook(fresh().gpuslice(migrated, false)), want: "gpuslice's webhook does not exist"},
		"another resource":                  {in: noWebhook(fresh().gpuslice(migrated, true)).flag("--resource-name=example.com/gpu"), want: "gpuslice's DaemonSet gpuslice-system/gpuslice-agent offers example.com/gpu, and HAMi's pods request nvidia.com/gpu: set resourceNames.count=nvidia.com/gpu"},
		"another resource, on the way back": {in: fresh().gpuslice(migrated, true).flag("--resource-name=example.com/gpu"), back: true},
		"another resource of HAMi":          {in: noWebhook(fresh("resourceCountName: nvidia.com/gpu", "resourceCountName: example.com/gpu").gpuslice(migrated, true)), want: "offers nvidia.com/gpu, and HAMi's pods request example.com/gpu"},
		"gpu-manager's resources":           {in: noWebhook(fresh().gpuslice(migrated, true)).config("resource-profile: tencent"), want: "has resource-profile tencent, and would not offer nvidia.com/gpu"},
		"a flag overrides the file":         {in: noWebhook(fresh().gpuslice(migrated, true)).config("resource-profile: tencent").flag("--resource-profile=hami")},
		"a damaged configuration":           {in: fresh().gpuslice(migrated, true).config("a: [b"), want: "read agent.yaml of gpuslice's DaemonSet"},
		"both webhooks":                     {in: fresh().gpuslice(migrated, true), want: "HAMi's webhook (hami-webhook) and gpuslice's (gpuslice) can both change the same pods"},
		"both webhooks, on the way back":    {in: fresh().gpuslice(migrated, true), back: true},
		"separate webhooks":                 {in: separate},
		"separate pods":                     {in: ofPods, want: "can both change the same pods"},
		"HAMi's selector, copied":           {in: copied, want: "can both change the same pods"},
		"HAMi's own label is shared":        {in: shared, want: "HAMi's DaemonSet kube-system/hami-device-plugin has no label of nodes that a node can lose (gpu is used by DaemonSet monitoring/dcgm-exporter): add one to its nodeSelector"},
		"a pod uses HAMi's label":           {in: podUses, want: "(gpu is used by pod team/bare)"},
		"only labels of programs":           {in: fresh(`nodeSelector: {gpu: "on"}`, `nodeSelector: {kubernetes.io/os: linux, nvidia.com/gpu.present: "true"}`).gpuslice(migrated, false), want: "(kubernetes.io/os is not HAMi's own label; nvidia.com/gpu.present is not HAMi's own label)"},
		"a shared label, on the way back":   {in: shared, back: true},
		"the same scheduler's name":         {in: named, want: "have the same name (hami-scheduler): set scheduler.name"},
		"agents everywhere":                 {in: fresh().gpuslice(nil, false), want: "gpuslice's DaemonSet gpuslice-system/gpuslice-agent does not select its nodes by gpuslice.io/migrated=true, and would run on others"},
		"the same label":                    {in: fresh().gpuslice(map[string]string{"gpu": "on"}, false), want: "does not select its nodes by gpuslice.io/migrated=true"},
		"HAMi's label, and another":         {in: fresh().gpuslice(map[string]string{"gpu": "on", "x": "y"}, false), want: "does not select its nodes by gpuslice.io/migrated=true"},
		"HAMi everywhere":                   {in: fresh(`nodeSelector: {gpu: "on"}`, "nodeSelector: {}").gpuslice(migrated, false), want: "has no label of nodes that a node can lose (it has none)"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := Prepare(HAMi, test.in, where, test.back)
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "nvidia.com/gpu", w.Count)
			assert.Equal(t, "gpu", w.Old.Key)
			assert.Equal(t, "hami-plugin", w.Old.UID)
			assert.Equal(t, "agent", w.New.UID)
		})
	}
}

// On the way back HAMi's webhook is to be there, and gpuslice's is not.
func TestPrepareTheWayBack(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml").gpuslice(migrated, true)
	policy := "deny"
	warnings := func() string {
		t.Helper()
		d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: system[0], Labels: map[string]string{labelName: "gpuslice"}}}
		d.Spec.Template.Spec.Containers = []v1.Container{{Args: []string{"--scheduler-name=gpuslice-scheduler", "--foreign-schedulers=" + policy}}}
		in.Deployments = append(in.Deployments[:1:1], d)
		w, err := Prepare(HAMi, in, where, true)
		require.NoError(t, err)
		return strings.Join(w.Warnings, "\n")
	}
	const ours = "gpuslice's webhook (gpuslice) still gives new pods with GPUs to gpuslice's scheduler, so that they do not run on nodes that go back"
	const writers = "\ngpuslice's policy for annotations refuses what HAMi writes to pods unless admission.writers of gpuslice's values has " +
		"system:serviceaccount:kube-system:hami-device-plugin and system:serviceaccount:kube-system:hami-scheduler"
	assert.Equal(t, ours+", and refuses pods that name another scheduler: first upgrade gpuslice with webhook.enabled=false"+writers, warnings())
	policy = "leave"
	assert.Equal(t, ours+": first upgrade gpuslice with webhook.enabled=false"+writers, warnings())
	in.Webhooks = in.Webhooks[:1]
	assert.Equal(t, writers, "\n"+warnings())
	own := recorded(t, "hami-2.10.0.yaml").gpuslice(migrated, true)
	in.Webhooks = nil
	assert.Contains(t, warnings(), "HAMi's webhook does not exist")
	in.Webhooks = own.Webhooks[1:]
	in.Deployments = in.Deployments[:1]
	w, err := Prepare(HAMi, in, where, false)
	require.NoError(t, err)
	assert.Empty(t, w.Warnings)
	w, err = Prepare(Tencent, recorded(t, "gpu-manager.yaml").gpuslice(migrated, true), where, true)
	require.NoError(t, err)
	require.Len(t, w.Warnings, 2)
	assert.Contains(t, w.Warnings[0], ours)
	assert.Contains(t, w.Warnings[1], "what gpu-manager writes to pods unless admission.writers of gpuslice's values has system:serviceaccount:kube-system:default and system:serviceaccount:kube-system:gpu-manager")
}

// Pods with the names of either side are evicted.
func TestResourcesOfBoth(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml", "resourceMemoryName: nvidia.com/gpumem", "resourceMemoryName: example.com/mem").gpuslice(migrated, true).flag("--resource-name=example.com/gpu")
	w, err := Prepare(HAMi, in, where, true)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"example.com/gpu", "example.com/mem", "nvidia.com/gpu", "nvidia.com/gpucores", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "tencent.com/vcuda-core", "tencent.com/vcuda-memory",
	}, w.Resources)
	assert.Equal(t, "nvidia.com/gpu", w.Count)
	in.Nodes = []v1.Node{labelled("a", migrated, api.AnnotationMigration, `{"from":"hami","done":true}`)}
	ours := example(t, "hami/cores.yaml", "ours", "a", true)
	ours.Spec.Containers[0].Resources.Limits = v1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	in.Pods = []v1.Pod{ours}
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Equal(t, []Pod{{"team/ours", true}}, p.Nodes[0].Pods)
}

// The accounts are those of the objects, and a scheduler outside of the cluster has another user.
func TestWriters(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml", "serviceAccountName: hami-device-plugin", "hostNetwork: true", "serviceAccountName: hami-scheduler", "hostNetwork: true")
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Contains(t, values(t, p), "admission:\n  writers:\n  - system:serviceaccount:kube-system:default\nagent:\n")
	in.Deployments = nil
	p, err = Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(p.Notes, "\n"), "the scheduler of HAMi is not found among the Deployments of namespace kube-system: add its user to admission.writers")
}

// Of several labels one is removed, which nothing else selects nodes by.
func TestOwnLabel(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml", `nodeSelector: {gpu: "on"}`, `nodeSelector: {gpu: "on", hami: "on", kubernetes.io/os: linux}`).gpuslice(migrated, true)
	in.Webhooks = in.Webhooks[1:]
	key := func() string {
		w, err := Prepare(HAMi, in, where, false)
		require.NoError(t, err)
		return w.Old.Key
	}
	assert.Equal(t, "gpu", key())
	yes := true
	of := func(owners ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "team", Name: "x", OwnerReferences: owners}
	}
	spec := v1.PodSpec{NodeSelector: map[string]string{"gpu": "on"}}
	in.Pods = []v1.Pod{{ObjectMeta: of(metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Controller: &yes}), Spec: spec}, {ObjectMeta: of(), Spec: spec, Status: v1.PodStatus{Phase: v1.PodSucceeded}}}
	in.Workloads = append(in.Workloads, Workload{"Deployment", "kube-system", "hami-other", map[string]string{labelInstance: "hami"}, spec})
	before := in.Pods
	in.Pods = append(in.Pods, v1.Pod{ObjectMeta: of(metav1.OwnerReference{Kind: "PyTorchJob", Controller: &yes}), Spec: spec})
	assert.Equal(t, "hami", key(), "templates of other kinds are not known")
	in.Pods = append(before[:2:2], v1.Pod{ObjectMeta: of(metav1.OwnerReference{APIVersion: "apps.kruise.io/v1beta1", Kind: "StatefulSet", Controller: &yes}), Spec: spec})
	assert.Equal(t, "hami", key(), "another StatefulSet")
	in.Pods = before
	workloads := in.Workloads
	made := of(metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Database", Controller: &yes})
	in.AddWorkload("StatefulSet", &made, spec)
	assert.Equal(t, "hami", key(), "the templates of a controller that is not listed are its objects'")
	in.Workloads = workloads
	made = of(metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Controller: &yes})
	in.AddWorkload("ReplicaSet", &made, spec)
	assert.Equal(t, "gpu", key(), "its Deployment is listed")
	assert.Equal(t, "gpu", key(), "pods of controllers are their workloads', and these are HAMi's")
	in.Workloads = append(in.Workloads, Workload{"Job", "team", "x", map[string]string{labelInstance: "hami"}, spec})
	assert.Equal(t, "hami", key(), "a tenant's labels make nothing HAMi's")
	// The node has lost another label than the one that would be chosen now.
	w, err := Prepare(HAMi, in, where, true)
	require.NoError(t, err)
	n := labelled("n", map[string]string{"gpu": "on", "kubernetes.io/os": "linux"})
	assert.Equal(t, "hami", w.Old.For(&n).Key)
	n = labelled("n", map[string]string{"hami": "on", "gpu": "on"})
	assert.Equal(t, "gpu", w.Old.For(&n).Key, "no label of a program is set")
}

func TestDisjoint(t *testing.T) {
	is := func(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	const in, notIn, exists, missing = metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist
	for _, test := range []struct {
		a, b *metav1.LabelSelector
		want bool
	}{
		{nil, nil, false}, {nil, is("k", in, "a"), false}, {&metav1.LabelSelector{}, is("k", in, "a"), false},
		{is("k", in, "a"), is("k", in, "b"), true}, {is("k", in, "a", "b"), is("k", in, "b"), false}, {is("k", in, "a"), is("other", in, "b"), false},
		{is("k", in, "a"), is("k", notIn, "a", "b"), true}, {is("k", in, "a", "c"), is("k", notIn, "a", "b"), false}, {is("k", notIn, "a"), is("k", notIn, "a"), false},
		{is("k", in, "a"), is("k", missing), true}, {is("k", exists), is("k", missing), true}, {is("k", notIn, "a"), is("k", missing), false},
		{is("k", exists), is("k", notIn, "a"), false}, {is("k", exists), is("k", in, "a"), false}, {is("k", missing), is("k", missing), false},
		{&metav1.LabelSelector{MatchLabels: map[string]string{"k": "a"}}, is("k", notIn, "a"), true},
	} {
		assert.Equal(t, test.want, disjoint(test.a, test.b), "%v %v", test.a, test.b)
		assert.Equal(t, test.want, disjoint(test.b, test.a), "%v %v", test.b, test.a)
		if !test.want || test.a == nil || test.b == nil {
			continue
		}
		for _, set := range []labels.Set{nil, {"k": "a"}, {"k": "b"}, {"k": "c"}, {"k": ""}, {"other": "b"}} {
			a, err := metav1.LabelSelectorAsSelector(test.a)
			require.NoError(t, err)
			b, err := metav1.LabelSelectorAsSelector(test.b)
			require.NoError(t, err)
			assert.False(t, a.Matches(set) && b.Matches(set), "%v matches %v and %v", set, test.a, test.b)
		}
	}
}

// The labels of a node decide whether it is switched, too.
func TestStates(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml").gpuslice(migrated, false)
	const done = `{"from":"hami","done":true}`
	in.Nodes = []v1.Node{
		labelled("back-by-hand", map[string]string{"gpu": "on"}, api.AnnotationMigration, done),
		labelled("bad", nil, api.AnnotationMigration, "x"),
		labelled("both", map[string]string{"gpu": "on", api.LabelMigrated: "true"}, api.AnnotationMigration, done),
		labelled("lost", nil, api.AnnotationHAMiRegister, register),
		labelled("neither", nil, api.AnnotationMigration, done),
		labelled("switched", migrated, api.AnnotationMigration, done, api.AnnotationHAMiRegister, register),
		labelled("tencent", nil, api.AnnotationMigration, `{"from":"tencent","done":true}`),
		labelled("new", migrated, api.AnnotationHAMiRegister, register),
	}
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Equal(t, []Node{
		{Name: "back-by-hand", State: StateChanged}, {Name: "bad", State: StateInvalid, Unserved: true}, {Name: "both", State: StateChanged},
		{Name: "lost", State: StateUnserved, Unserved: true, GPUs: 2}, {Name: "neither", State: StateChanged, Unserved: true}, {Name: "switched", State: StateSwitched, GPUs: 2},
	}, p.Nodes)
	assert.Contains(t, strings.Join(p.Problems, "\n"), "node bad: the annotation gpuslice.io/migration is invalid")
	for _, back := range []bool{false, true} {
		_, _, err = p.ToSwitch(back)
		require.EqualError(t, err, "node bad has an invalid annotation gpuslice.io/migration: remove it after you have checked the node's labels")
	}
	p.Nodes = append(p.Nodes[:1], p.Nodes[2:]...)
	p.Nodes = append(p.Nodes, Node{Name: "going-back", State: StateReturning})
	assert.Empty(t, switching(t, p, false))
	assert.Equal(t, []string{"switched", "going-back"}, switching(t, p, true), "an interrupted way back continues")
	for back, want := range map[bool][]string{false: {"back-by-hand", "both", "neither", "going-back"}, true: {"back-by-hand", "both", "neither"}} {
		_, passed, err := p.ToSwitch(back)
		require.NoError(t, err)
		var names []string
		for _, n := range passed {
			names = append(names, n.Name)
		}
		assert.Equal(t, want, names)
	}
}

// Pods that an eviction does not remove, and those with MIG instances, are in the plan.
func TestPlanOfPods(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml").gpuslice(migrated, false)
	in.Nodes = []v1.Node{labelled("a", map[string]string{"gpu": "on"})}
	yes := true
	mig := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "mig"}, Spec: v1.PodSpec{NodeName: "a", Containers: []v1.Container{{Name: "main"}}}}
	mig.Spec.Containers[0].Resources.Limits = v1.ResourceList{"nvidia.com/mig-1g.5gb": resource.MustParse("1")}
	daemon := example(t, "hami/cores.yaml", "daemon", "a", true)
	daemon.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "exporter", Controller: &yes}}
	in.Pods = []v1.Pod{mig, daemon}
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Equal(t, []Pod{{"team/daemon", true}, {"team/mig", false}}, p.Nodes[0].Pods)
	assert.Contains(t, p.Problems, "node a: pod team/daemon is of DaemonSet exporter, which creates it on the node again: exclude the node there")
}

// Workloads of all kinds that name HAMi's scheduler are found.
func TestWorkloadsOfHAMisScheduler(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml")
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"} {
		in.Workloads = append(in.Workloads, Workload{Kind: kind, Namespace: "team", Name: strings.ToLower(kind), Spec: v1.PodSpec{SchedulerName: "hami-scheduler"}})
	}
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Contains(t, p.Notes, "workloads name the scheduler hami-scheduler, so that gpuslice refuses their pods: remove schedulerName "+
		"(CronJob team/cronjob, DaemonSet team/daemonset, Deployment team/deployment, Job team/job, ReplicaSet team/replicaset and 1 more), in objects of other kinds too")
}

// After HAMi was uninstalled, nodes that had been begun are finished.
func TestPlanWithoutHAMi(t *testing.T) {
	in := (&Inventory{}).gpuslice(migrated, true).flag("--resource-name=example.com/gpu")
	in.Nodes = []v1.Node{
		labelled("half", nil, api.AnnotationMigration, `{"from":"hami","cordoned":true}`), labelled("moved", migrated, api.AnnotationMigration, `{"from":"hami","done":true}`),
		labelled("lost", nil, api.AnnotationHAMiRegister, register),
	}
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.True(t, p.Gone)
	assert.Empty(t, p.Problems)
	assert.Equal(t, []Node{{Name: "half", State: StateSwitching, Unserved: true}, {Name: "lost", State: StateUnserved, Unserved: true, GPUs: 2}, {Name: "moved", State: StateSwitched}}, p.Nodes)
	assert.Equal(t, []string{"half"}, switching(t, p, false))
	w, err := Prepare(HAMi, in, where, false)
	require.NoError(t, err)
	assert.Equal(t, "example.com/gpu", w.Count)
	assert.Equal(t, Daemon{Of: "HAMi"}, w.Old)
	assert.Equal(t, "HAMi", w.Old.String())
	elsewhere := Where{Ours: system, Theirs: "team"} // HAMi may be in another namespace
	_, err = Make(HAMi, in, elsewhere)
	require.ErrorContains(t, err, "in namespace team: leave out --namespace to search all")
	_, err = Prepare(HAMi, in, elsewhere, false)
	require.ErrorContains(t, err, "in namespace team: leave out --namespace to search all")
	webhooks := in.Webhooks
	in.Webhooks = nil
	_, err = Prepare(HAMi, in, where, false)
	require.EqualError(t, err, "gpuslice's webhook does not exist: upgrade gpuslice with webhook.enabled=true")
	in.Webhooks = webhooks
	_, err = Prepare(HAMi, in, where, true)
	require.ErrorContains(t, err, "HAMi is not found")
	in.DaemonSets[0].Spec.Template.Spec.NodeSelector = nil
	p, err = Make(HAMi, in, where)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(p.Problems, "\n"), "does not select its nodes by gpuslice.io/migrated=true")
	in.Nodes = in.Nodes[2:]
	_, err = Make(HAMi, in, where)
	require.ErrorContains(t, err, "HAMi is not found")
}

// A tenant's Deployment with the labels of HAMi's scheduler configures nothing.
func TestSchedulerOfATenant(t *testing.T) {
	in := recorded(t, "hami-2.10.0.yaml")
	fake := *in.Deployments[0].DeepCopy()
	fake.Namespace = "team"
	fake.Spec.Template.Spec.Containers[1].Command = []string{"scheduler", "--scheduler-name=mine", "--node-scheduler-policy=spread"}
	in.Deployments = append(in.Deployments, fake)
	p, err := Make(HAMi, in, where)
	require.NoError(t, err)
	assert.NotContains(t, values(t, p), "nodePolicy")
}

func TestRecordOf(t *testing.T) {
	n := labelled("n", nil)
	r, err := RecordOf(&n)
	require.NoError(t, err)
	assert.Nil(t, r)
	for _, text := range []string{"", "{}", `{"from":"volcano"}`, "[]"} {
		n.Annotations[api.AnnotationMigration] = text
		_, err = RecordOf(&n)
		require.ErrorContains(t, err, "node n: the annotation gpuslice.io/migration is invalid", text)
	}
}
