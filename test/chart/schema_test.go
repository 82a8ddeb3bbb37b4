//go:build root

package chart

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
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
	"dra.claimNamespaces":                reflect.TypeFor[[]string](),
	"monitoring.podMonitor.labels":       reflect.TypeFor[map[string]string](),
	"monitoring.schedulerMonitor.labels": reflect.TypeFor[map[string]string](),
	"monitoring.prometheusRule.labels":   reflect.TypeFor[map[string]string](),
	"monitoring.dashboard.labels":        reflect.TypeFor[map[string]string](),
	"verify.nodes":                       reflect.TypeFor[[]string](),
	"networkPolicy.from":                 reflect.TypeFor[[]networkingv1.NetworkPolicyPeer](),
}

// typeOf returns a value's type; nil: it is not in typed.
func typeOf(path string) reflect.Type {
	if of := typed[path]; of != nil {
		return of
	}
	component, field, _ := strings.Cut(path, ".")
	if slices.Contains([]string{"agent", "discovery", "scheduler", "webhook", "verify"}, component) {
		return typed["*."+field]
	}
	return nil
}

// anyText are types of text with other values than the constants of their package, or without constants.
var anyText = []reflect.Type{
	reflect.TypeFor[string](), reflect.TypeFor[corev1.Capability](), reflect.TypeFor[corev1.StorageMedium](), reflect.TypeFor[types.UID](),
}

// orEmpty are types of text of which "" is a value too, without a constant.
var orEmpty = []reflect.Type{reflect.TypeFor[corev1.TolerationOperator](), reflect.TypeFor[corev1.TaintEffect]()}

// words returns the values of a type of text: the constants of its package, so that a newer Kubernetes' are among them.
func words(t *testing.T, of reflect.Type) []string {
	t.Helper()
	found := slices.Clone(constants(t, of.PkgPath())[of.Name()])
	require.NotEmpty(t, found, "%s has no constants, and is not in anyText", of)
	if slices.Contains(orEmpty, of) {
		found = append(found, "")
	}
	slices.Sort(found)
	return slices.Compact(found)
}

var constantsOf = map[string]map[string][]string{}

// constants returns the texts of a package's constants, by the name of their type.
func constants(t *testing.T, pkg string) map[string][]string {
	t.Helper()
	if constantsOf[pkg] != nil {
		return constantsOf[pkg]
	}
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	require.NoError(t, err, pkg)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	require.NoError(t, err)
	found := map[string][]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, is := n.(*ast.ValueSpec)
			if !is {
				return true
			}
			kind, is := spec.Type.(*ast.Ident)
			if !is {
				return true
			}
			for _, value := range spec.Values {
				if literal, is := value.(*ast.BasicLit); is && literal.Kind == token.STRING {
					text, err := strconv.Unquote(literal.Value)
					require.NoError(t, err)
					found[kind.Name] = append(found[kind.Name], text)
				}
			}
			return true
		})
	}
	constantsOf[pkg] = found
	return found
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
		// null, as in files of values, removes a default; the templates leave other nulls out.
		return schema{"type": []string{"string", "number", "null"}, "pattern": `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`}
	case reflect.TypeFor[intstr.IntOrString]():
		return schema{"anyOf": []any{schema{"type": "integer", "minimum": 0}, schema{"type": "string", "pattern": "^[0-9]+%$"}}}
	case reflect.TypeFor[metav1.Duration]():
		return schema{"type": "string", "pattern": `^([0-9]+(ms|s|m|h))+$`}
	case reflect.TypeFor[metav1.Time]():
		return schema{"type": "string"}
	}
	switch of.Kind() {
	case reflect.String:
		if slices.Contains(anyText, of) {
			return schema{"type": "string"}
		}
		return schema{"enum": words(t, of)}
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
