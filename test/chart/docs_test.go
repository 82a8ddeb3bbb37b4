//go:build root

package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/nvidia"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	require.NoError(t, err)
	return string(text)
}

// namedValue is a value as the documents name it.
var namedValue = regexp.MustCompile("`((?:image|apiServer|resourceNames|grantKey|agent|scheduler|webhook|admission|barrier|gpuOperator|openshift|runtimeClass|rbac|monitoring|networkPolicy)(?:\\.[A-Za-z0-9-]+)+)")

// others is the first column of a table: what is called so elsewhere.
var others = regexp.MustCompile(`(?m)^\|[^|]*\|`)

// Values that the documents name are there, and agent.config takes the options that they name.
func TestValuesThatTheDocsName(t *testing.T) {
	known := map[string]bool{}
	var add func([]value)
	add = func(fields []value) {
		for _, v := range fields {
			known[v.path] = true
			add(v.fields)
		}
	}
	add(values(t))
	for option := range agentOptions(t) {
		known["agent.config."+option] = true
	}
	// Maps with fields of Kubernetes or of another program.
	below := func(path string) bool {
		for at := path; strings.Contains(at, "."); {
			at = at[:strings.LastIndexByte(at, '.')]
			if opaque[at+"."] || at == "scheduler.settings" || at == "agent.nodeSelector" || at == "agent.seLinuxOptions" || at == "networkPolicy.from" {
				return true
			}
		}
		return false
	}
	files, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	named := 0
	for _, file := range files {
		name := filepath.Base(file)
		text := page(t, name)
		if name == "MIGRATING.md" {
			text = others.ReplaceAllString(text, "")
		}
		for _, m := range namedValue.FindAllStringSubmatch(text, -1) {
			if slices.Contains([]string{".lock", ".yaml", ".json", ".go"}, filepath.Ext(m[1])) {
				continue // a file
			}
			named++
			require.True(t, known[m[1]] || below(m[1]), "docs/%s: the chart has no value %s", name, m[1])
		}
	}
	require.Greater(t, named, 50)
}

// The policy of the agents' writes has the labels of --nvidia-labels.
func TestPolicyOfLabels(t *testing.T) {
	text := renderOnly(t, "admission/agents.yaml")
	_, list, found := strings.Cut(text, "- name: nvidiaLabels\n")
	require.True(t, found)
	list, _, _ = strings.Cut(list, "].map(")
	var labels []string
	for _, m := range regexp.MustCompile("'([^']+)'").FindAllStringSubmatch(list, -1) {
		labels = append(labels, "nvidia.com/"+m[1])
	}
	require.Equal(t, api.NVIDIALabels, labels)
}

// docs/INSTALL.md describes how to remove all that agents write on a Node.
func TestWhatIsLeftOnNodes(t *testing.T) {
	gpu := nvidia.GPU{UUID: "GPU-1", Model: "NVIDIA H200", MemoryMiB: 144384, ComputeCapability: "9.0", MIGCapable: true, MIGEnabled: true}
	said := noderegister.Render(noderegister.Node{
		DriverVersion: "575.57.08", CUDAVersion: "12.9",
		Devices: []noderegister.Device{{GPU: gpu, Replicas: 10}},
	}, noderegister.Options{TencentModel: true, NVIDIALabels: true})
	said.Annotations[api.AnnotationHAMiHandshake] = "" // the publisher's

	_, text, found := strings.Cut(page(t, "INSTALL.md"), "\n## Uninstall\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n## ")
	removed := func(command string) map[string]bool {
		all := map[string]bool{}
		for _, m := range regexp.MustCompile("`"+command+" nodes --all ([^`]+)`").FindAllStringSubmatch(text, -1) {
			for _, word := range strings.Fields(m[1]) {
				all[strings.TrimSuffix(word, "-")] = true
			}
		}
		return all
	}
	annotations, labels := removed("kubectl annotate"), removed("kubectl label")
	require.NotEmpty(t, said.Annotations)
	for key := range said.Annotations {
		require.True(t, annotations[key], "annotation %s", key)
	}
	// The command that finds the labels that are there goes by what they begin with.
	prefix := regexp.MustCompile(`sed -n 's,\^([^,]+)\.\*,&-,p'`).FindStringSubmatch(text)
	require.NotNil(t, prefix)
	ours := regexp.MustCompile("^" + prefix[1])
	require.Contains(t, said.Labels, api.LabelTencentModel)
	require.Contains(t, said.Labels, api.LabelPrefix+"count")
	for key := range said.Labels {
		require.True(t, labels[key] || ours.MatchString(key), "label %s", key)
	}
}

var (
	generated = regexp.MustCompile(`(?s)<!-- generated: ([a-z-]+) -->(.*?)<!-- end -->`)
	row       = regexp.MustCompile("(?m)^\\| `([A-Za-z_]+)` \\|")
	ourMetric = regexp.MustCompile(`gpuslice_[a-z_]+`)
)

// Each name of a metric that others had is in docs/MIGRATING.md, with one of ours that there is.
func TestMetricsOfTheMigration(t *testing.T) {
	migrating := page(t, "MIGRATING.md")
	_, migrating, found := strings.Cut(migrating, "\n## Metrics\n")
	require.True(t, found)
	ours, lists := map[string]bool{}, 0
	for _, list := range generated.FindAllStringSubmatch(page(t, "METRICS.md"), -1) {
		lists++
		for _, m := range row.FindAllStringSubmatch(list[2], -1) {
			if strings.HasPrefix(m[1], "gpuslice_") {
				ours[m[1]] = true
				continue
			}
			require.Contains(t, migrating, "`"+m[1]+"`", list[1])
		}
	}
	require.Equal(t, 5, lists)
	for _, name := range ourMetric.FindAllString(migrating, -1) {
		require.True(t, ours[name], "there is no metric %s", name)
	}
}
