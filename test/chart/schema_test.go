//go:build root

package chart

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/plugin"
)

// typed are values in the format of Kubernetes or of a program: the templates copy them. "*" is any component.
var typed = map[string]reflect.Type{
	"imagePullSecrets":                   reflect.TypeFor[[]corev1.LocalObjectReference](),
	"commonLabels":                       reflect.TypeFor[map[string]string](),
	"*.tolerations":                      reflect.TypeFor[[]corev1.Toleration](),
	"*.affinity":                         reflect.TypeFor[corev1.Affinity](),
	"*.nodeSelector":                     reflect.TypeFor[map[string]string](),
	"*.podAnnotations":                   reflect.TypeFor[map[string]string](),
	"*.resources":                        reflect.TypeFor[corev1.ResourceRequirements](),
	"*.extraArgs":                        reflect.TypeFor[[]string](),
	"agent.seccompProfile":               reflect.TypeFor[corev1.SeccompProfile](),
	"agent.appArmorProfile":              reflect.TypeFor[corev1.AppArmorProfile](),
	"agent.seLinuxOptions":               reflect.TypeFor[corev1.SELinuxOptions](),
	"agent.extraCapabilities":            reflect.TypeFor[[]corev1.Capability](),
	"agent.extraEnv":                     reflect.TypeFor[[]corev1.EnvVar](),
	"agent.extraVolumes":                 reflect.TypeFor[[]corev1.Volume](),
	"agent.extraVolumeMounts":            reflect.TypeFor[[]corev1.VolumeMount](),
	"agent.updateStrategy":               reflect.TypeFor[appsv1.DaemonSetUpdateStrategy](),
	"scheduler.settings":                 reflect.TypeFor[plugin.Args](),
	"webhook.namespaceSelector":          reflect.TypeFor[metav1.LabelSelector](),
	"webhook.objectSelector":             reflect.TypeFor[metav1.LabelSelector](),
	"webhook.configurationAnnotations":   reflect.TypeFor[map[string]string](),
	"admission.writers":                  reflect.TypeFor[[]string](),
	"admission.toleratedNamespaces":      reflect.TypeFor[[]string](),
	"admission.toleratedUsers":           reflect.TypeFor[[]string](),
	"admission.privilegedNamespaces":     reflect.TypeFor[[]string](),
	"monitoring.podMonitor.labels":       reflect.TypeFor[map[string]string](),
	"monitoring.schedulerMonitor.labels": reflect.TypeFor[map[string]string](),
	"monitoring.prometheusRule.labels":   reflect.TypeFor[map[string]string](),
	"monitoring.dashboard.labels":        reflect.TypeFor[map[string]string](),
	"networkPolicy.from":                 reflect.TypeFor[[]networkingv1.NetworkPolicyPeer](),
}

// typeOf returns a value's type; nil: it is not in typed.
func typeOf(path string) reflect.Type {
	if of := typed[path]; of != nil {
		return of
	}
	component, field, _ := strings.Cut(path, ".")
	if slices.Contains([]string{"agent", "scheduler", "webhook"}, component) {
		return typed["*."+field]
	}
	return nil
}

// words are the values of Kubernetes' types that have only these. Each other type of text in typed is in anyText.
var words = map[reflect.Type][]any{
	reflect.TypeFor[corev1.TolerationOperator]():          {"", corev1.TolerationOpExists, corev1.TolerationOpEqual},
	reflect.TypeFor[corev1.TaintEffect]():                 {"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute},
	reflect.TypeFor[corev1.NodeSelectorOperator]():        {corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt},
	reflect.TypeFor[metav1.LabelSelectorOperator]():       {metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist},
	reflect.TypeFor[corev1.SeccompProfileType]():          {corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined, corev1.SeccompProfileTypeLocalhost},
	reflect.TypeFor[corev1.AppArmorProfileType]():         {corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined, corev1.AppArmorProfileTypeLocalhost},
	reflect.TypeFor[corev1.MountPropagationMode]():        {corev1.MountPropagationNone, corev1.MountPropagationHostToContainer, corev1.MountPropagationBidirectional},
	reflect.TypeFor[corev1.RecursiveReadOnlyMode]():       {corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled},
	reflect.TypeFor[corev1.HostPathType]():                {"", corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev},
	reflect.TypeFor[corev1.PullPolicy]():                  {corev1.PullAlways, corev1.PullNever, corev1.PullIfNotPresent},
	reflect.TypeFor[corev1.PersistentVolumeAccessMode]():  {corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod},
	reflect.TypeFor[corev1.PersistentVolumeMode]():        {corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem},
	reflect.TypeFor[corev1.AzureDataDiskCachingMode]():    {corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite},
	reflect.TypeFor[corev1.AzureDataDiskKind]():           {corev1.AzureSharedBlobDisk, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk},
	reflect.TypeFor[appsv1.DaemonSetUpdateStrategyType](): {appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType},
	reflect.TypeFor[metav1.ManagedFieldsOperationType]():  {metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate},
}

var anyText = []reflect.Type{
	reflect.TypeFor[corev1.Capability](), reflect.TypeFor[corev1.StorageMedium](), reflect.TypeFor[types.UID](),
}

// ofSettings are the constraints of the scheduler's settings, by their JSON name; plugin.ParseArgs checks them again.
var ofSettings = map[string]schema{
	"nodePolicy":           {"pattern": chain(choose.Binpack, choose.Spread, choose.Topology)},
	"gpuPolicy":            {"pattern": chain(choose.Spread, choose.Binpack, choose.Topology, choose.NUMA, choose.Mutex, choose.Tencent)},
	"weights":              {"pattern": `^((slot|core|memory)=[0-9]+(,(slot|core|memory)=[0-9]+){2})?$`},
	"scoreWithPreferences": {"minimum": 1, "maximum": 100},
	"gpuQuota":             {"pattern": `^([^/]+/[^/]+)?$`},
	"legacyMetrics":        {"items": schema{"enum": []any{"hami"}}},
	"memoryMiB":            {"minimum": 0}, "count": {"minimum": 0}, "memoryFactor": {"minimum": 0}, "cores": {"minimum": 0, "maximum": 100},
}

// chain is a list of words with commas.
func chain(words ...string) string {
	word := "(" + strings.Join(words, "|") + ")"
	return "^(" + word + "(, ?" + word + ")*)?$"
}

// notSettings are fields of GPUSliceArgs that follow from other values.
var notSettings = []string{"apiVersion", "kind", "resources", "annotate", "grantPrivateKeyFile"}

// definitions are the schemas of structs, by the names of their types.
type definitions map[string]any

// of returns the schema of a type, as encoding/json writes it.
func (d definitions) of(t *testing.T, of reflect.Type) schema {
	t.Helper()
	switch of {
	case reflect.TypeFor[resource.Quantity]():
		return schema{"type": []string{"string", "number"}, "pattern": `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`}
	case reflect.TypeFor[intstr.IntOrString]():
		return schema{"anyOf": []any{schema{"type": "integer", "minimum": 0}, schema{"type": "string", "pattern": "^[0-9]+%$"}}}
	case reflect.TypeFor[metav1.Duration]():
		return schema{"type": "string", "pattern": `^([0-9]+(ms|s|m|h))+$`}
	case reflect.TypeFor[metav1.Time]():
		return schema{"type": "string"}
	}
	if words[of] != nil {
		return schema{"enum": words[of]}
	}
	switch of.Kind() {
	case reflect.String:
		require.True(t, of == reflect.TypeFor[string]() || slices.Contains(anyText, of), "%s is neither in words nor in anyText", of)
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return schema{"type": "integer"}
	case reflect.Pointer:
		return d.of(t, of.Elem())
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return schema{"type": "string"}
		}
		return schema{"type": "array", "items": d.of(t, of.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": d.of(t, of.Elem())}
	}
	require.Equal(t, reflect.Struct, of.Kind(), of)
	if d[of.String()] == nil {
		d[of.String()] = schema{} // a type can contain itself
		properties, required := schema{}, []string{}
		d.fields(t, of, properties, &required)
		object := schema{"type": "object", "additionalProperties": false, "properties": properties}
		if len(required) > 0 {
			slices.Sort(required)
			object["required"] = required
		}
		d[of.String()] = object
	}
	return schema{"$ref": "#/definitions/" + of.String()}
}

func (d definitions) fields(t *testing.T, of reflect.Type, properties schema, required *[]string) {
	settings := strings.HasPrefix(of.PkgPath(), reflect.TypeFor[plugin.Args]().PkgPath())
	for f := range of.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || settings && slices.Contains(notSettings, name):
		case name == "" && strings.Contains(options, "inline"):
			if f.Type != reflect.TypeFor[metav1.TypeMeta]() {
				d.fields(t, f.Type, properties, required)
			}
		default:
			require.NotEmpty(t, name, "%s.%s", of, f.Name)
			s := d.of(t, f.Type)
			if settings {
				for k, v := range ofSettings[name] {
					s[k] = v
				}
			}
			properties[name] = s
			if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
				*required = append(*required, name)
			}
		}
	}
}

// nodeConfig is HAMi's configuration by node; the default is empty.
func nodeConfig(t *testing.T, d definitions) schema {
	data, err := os.ReadFile("../../install/nodeconfig.schema.json")
	require.NoError(t, err)
	var file struct {
		Definitions map[string]any `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(data, &file))
	d["nodeconfig.entry"] = file.Definitions["entry"]
	return schema{"type": "object", "additionalProperties": false, "properties": schema{
		"nodeconfig": schema{"type": "array", "items": schema{"$ref": "#/definitions/nodeconfig.entry"}},
	}}
}

// Each map and list of values.yaml has a type.
func TestEveryMapAndListIsTyped(t *testing.T) {
	var check func([]value)
	check = func(fields []value) {
		for _, v := range fields {
			if v.path == "agent.config" || v.path == "agent.nodeConfig" || v.path == "agent.paths.cdi" || typeOf(v.path) != nil {
				continue // agentOptions, nodeConfig, absolute
			}
			if v.fields != nil {
				check(v.fields)
				continue
			}
			require.NotContains(t, []string{"!!map", "!!seq"}, v.node.Tag, v.path)
		}
	}
	check(values(t))
}
