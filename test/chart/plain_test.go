//go:build root

package chart

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/test/golden"
)

// plain are the manifests for clusters without Helm: the chart's templates, rendered into kube-system.
var plain = []struct {
	file      string
	head      string
	templates []string
	values    []string
	without   string // what of it is elsewhere, by a pattern
}{
	{file: "agent-rbac.yaml", head: "The rights of gpuslice-agent.", templates: []string{"agent/rbac.yaml"}},
	{file: "people-rbac.yaml", head: "Rights for people.", templates: []string{"people.yaml"}},
	{file: "scheduler/scheduler.yaml", head: "gpuslice-scheduler: a kube-scheduler with the plugin; its configuration is config.yaml (kubectl apply -k install/scheduler).", templates: []string{"scheduler/rbac.yaml", "scheduler/fence.yaml", "scheduler/deployment.yaml"}},
	{file: "scheduler/extender.yaml", head: "gpuslice-scheduler extender; extender-config.yaml is for the kube-scheduler.", templates: []string{"scheduler/rbac.yaml", "scheduler/fence.yaml", "scheduler/extender.yaml", "scheduler/config.yaml"}, values: []string{`scheduler.mode="extender"`}},
	{file: "admission/webhook.yaml", head: "The webhook.", templates: []string{"webhook/webhook.yaml", "scheduler/config.yaml"}, without: `(?m)^kind: ConfigMap\nmetadata:\n  name: gpuslice-scheduler$`},
	{file: "admission/configurations.yaml", head: "What the API server asks the webhook.", templates: []string{"admission/configurations.yaml"}},
	{file: "admission/agents.yaml", head: "What the API server keeps agents to.", templates: []string{"admission/agents.yaml"}},
	{file: "admission/resourceslices.yaml", head: "What the API server keeps agents to with DRA.", templates: []string{"admission/resourceslices.yaml"}, values: []string{`dra.enabled=true`}},
	{file: "admission/resourceclaims.yaml", head: "The API server's policy for pods with ResourceClaims that are root of their node.", templates: []string{"admission/resourceclaims.yaml"}, values: []string{`dra.enabled=true`}},
	{file: "admission/privileged.yaml", head: "The API server's policy for pods that are root of their node.", templates: []string{"admission/privileged.yaml"}},
	{file: "admission/policy.yaml", head: "What the API server enforces by itself.", templates: []string{"admission/policy.yaml"}},
}

// plainValues are the values of all of them. They have no Secret of keys: a user that makes one sets it in
// the settings.
var plainValues = []string{`grantKey.enabled=false`}

// quotaRights let the settings name gpu-manager's quota.
const quotaRights = `scheduler.settings={"gpuQuota":"kube-system/gpuquota"}`

// ofHelm are lines that only helm's objects have.
var ofHelm = regexp.MustCompile(`(?m)^(# Source: .*| *(app.kubernetes.io/(managed-by|version)|helm.sh/chart|checksum/config): .*)\n`)

// bare is rendered text without what only helm's objects have.
func bare(text string) string {
	text = ofHelm.ReplaceAllString(text, "")
	return regexp.MustCompile(`(?m)^ *annotations:\n( *spec:)`).ReplaceAllString(text, "$1")
}

// The plain manifests are the chart's: `make generate` writes them.
func TestPlainManifests(t *testing.T) {
	for _, p := range plain {
		t.Run(p.file, func(t *testing.T) {
			var text strings.Builder
			text.WriteString("# " + p.head + "\n# Made from install/charts/gpuslice by `make generate`: change it there.\n")
			separator := ""
			for _, name := range p.templates {
				values := append(slices.Clone(p.values), plainValues...)
				if name == "scheduler/rbac.yaml" {
					values = append(values, quotaRights)
				}
				for _, d := range documents(bare(renderOnly(t, name, values...))) {
					if p.without != "" && regexp.MustCompile(p.without).MatchString(d) {
						continue
					}
					text.WriteString(separator + strings.Trim(strings.TrimPrefix(strings.Trim(d, "\n"), "---\n"), "\n") + "\n")
					separator = "---\n"
				}
			}
			require.NotEmpty(t, objects(t, text.String()))
			golden.Check(t, filepath.Join("../../install", p.file), text.String())
		})
	}
	t.Run("config.yaml", func(t *testing.T) {
		for _, o := range objects(t, renderOnly(t, "scheduler/config.yaml", plainValues...)) {
			if config := o.(*corev1.ConfigMap); config.Name == "gpuslice-scheduler" {
				golden.Check(t, "../../install/scheduler/config.yaml", config.Data["config.yaml"])
				return
			}
		}
		require.Fail(t, "no ConfigMap gpuslice-scheduler")
	})
}

// renderOnly is one template of the chart, in kube-system.
func renderOnly(t *testing.T, template string, values ...string) string {
	t.Helper()
	args := []string{"template", "gpuslice", chartDir, "--namespace", "kube-system", "--kube-version", "1.36.3", "--show-only", "templates/" + template}
	for _, v := range values {
		args = append(args, "--set-json", v)
	}
	out, errs, err := helm(t, args...)
	require.NoError(t, err, "%s: %s", template, errs)
	return out
}
