//go:build e2e

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// operatorKinds are Prometheus' operator's, as far as the API server needs to know them.
const operatorKinds = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {plural: podmonitors, singular: podmonitor, kind: PodMonitor}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {plural: servicemonitors, singular: servicemonitor, kind: ServiceMonitor}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// withOperatorKinds has the cluster know what MONITORING.md's reader has already.
func withOperatorKinds(t *testing.T) {
	ctx := context.Background()
	file := filepath.Join(t.TempDir(), "kinds.yaml")
	require.NoError(t, os.WriteFile(file, []byte(operatorKinds), 0o600))
	out, err := cluster.Kubectl(ctx, "apply", "-f", file)
	require.NoError(t, err, out)
	t.Cleanup(func() {
		out, err := cluster.Kubectl(ctx, "delete", "-f", file)
		assert.NoError(t, err, out)
	})
	out, err = cluster.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=2m", "-f", file)
	require.NoError(t, err, out)
}

// Each command for a cluster that a page shows is run as it stands there, here or by the test that brings the release to
// where it belongs; a new one is run here without being named anywhere. So is what stands in their texts.
func TestCommandsOfTheDocs(t *testing.T) {
	ctx := context.Background()
	all := blocksOfClusters(t)
	requireAllKnown(t, all)
	tooNew := func(page string) bool { return !has(t, needs[page]) }
	all = slices.DeleteFunc(all, func(b pages.Block) bool { return tooNew(b.Page) })
	var here []pages.Block
	elsewhere := map[string]bool{}
	for _, b := range all {
		if reads(b) == t.Name() {
			here = append(here, b)
			continue
		}
		for _, c := range b.Commands {
			elsewhere[c.Text] = true
		}
	}
	require.NotEmpty(t, here)
	slices.SortStableFunc(here, func(a, b pages.Block) int { return strings.Compare(a.Page, b.Page) })

	s := newSpaceOf(t, metav1.ObjectMeta{Name: "team-a"})
	s.run(pod("train", container("main", gpu(2000, 30))))
	withOperatorKinds(t)
	t.Cleanup(func() { require.NoError(t, cluster.InstallChart(ctx)) })
	agents, err := cluster.PodsOf(ctx, "agent")
	require.NoError(t, err)
	require.Len(t, agents, 1)
	r := newReader(t, map[string]string{"AGENT-POD": agents[0].Name, "POD": "train", "NODE GPU": harness.NodeName + " 7", "NODE": harness.NodeName, "/tmp/gs…": cluster.Dir})
	r.inNamespace(s.name)
	t.Cleanup(func() {
		out, err := kubectlGPUSlice(t, "uncordon", harness.NodeName, "7")
		assert.NoError(t, err, out)
	})
	r.doesInText(slices.DeleteFunc(inTexts(t, ""), func(c pages.Command) bool { return tooNew(c.Page) }))
	for _, b := range here {
		// What is shown on several pages, such as helm install, runs where there is no release.
		b.Commands = slices.DeleteFunc(b.Commands, func(c pages.Command) bool { return elsewhere[c.Text] })
		if !slices.ContainsFunc(b.Commands, func(c pages.Command) bool { return ofACluster.MatchString(c.Text) }) {
			continue
		}
		out := r.does(b)
		for about, said := range map[string]string{"port-forward": "train", "resize train": "12288 MiB", "explain": "main has "} {
			if slices.ContainsFunc(b.Commands, func(c pages.Command) bool { return strings.Contains(c.Text, about) }) {
				assert.Contains(t, out, said, "%s:%d", b.Page, b.Line)
			}
		}
	}
}

// inNamespace makes a namespace that of the reader's context.
func (r *reader) inNamespace(name string) {
	admin, err := cluster.Kubeconfig(kube.Admin)
	require.NoError(r.t, err)
	text, err := os.ReadFile(admin)
	require.NoError(r.t, err)
	own := filepath.Join(r.dir, "kubeconfig")
	require.NoError(r.t, os.WriteFile(own, text, 0o600))
	shell := r.shell
	r.shell = func(ctx context.Context, script string) (string, error) {
		return shell(ctx, "export KUBECONFIG="+own+"\n"+script)
	}
	out, err := r.shell(context.Background(), "kubectl config set-context --current --namespace="+name)
	require.NoError(r.t, err, out)
}

// requireAllKnown checks that each command of these blocks is one that is run, or declared, and that all that is declared is
// needed.
func requireAllKnown(t *testing.T, all []pages.Block) {
	text := ""
	used := map[string]bool{}
	for _, b := range all {
		for _, place := range []string{b.Page, b.Page + "#" + b.Section} {
			used[place] = true
		}
		for _, c := range b.Commands {
			text += c.Text + "\n"
			notRunBy, not := beginsWith(c.Text, notRun)
			triedBy, try := beginsWith(c.Text, tried)
			used[notRunBy], used[triedBy] = true, true
			known := not || try || isBesides(c.Text) || strings.HasPrefix(c.Text, "kubectl ") || strings.HasPrefix(c.Text, "helm ")
			assert.True(t, known, "%s:%d: %s: add it to the commands that run with the others of their block (besides) or to the others (notRun)", c.Page, c.Line, c.Text)
		}
	}
	for _, table := range []map[string]string{readBy, notRun, tried} {
		for key := range table {
			assert.True(t, used[key], "no command of the documents needs %q any more", key)
		}
	}
	for _, c := range slices.Concat(inTexts(t, ""), inTexts(t, remaining)) {
		text += c.Text + "\n"
		used[c.Text] = true
	}
	for _, name := range named {
		assert.True(t, used[name], "no text names %q any more", name)
	}
	for _, part := range slices.Concat(words, besides) {
		assert.Contains(t, text, part, "no command of the documents needs it any more")
	}
	require.False(t, t.Failed())
}

// The API server, its admission and the installed webhook accept each example as it stands.
func TestExamples(t *testing.T) {
	ctx := context.Background()
	root, err := harness.Repository()
	require.NoError(t, err)
	// A dry run of a pod needs the class, of which a dry run makes none.
	out, err := cluster.Kubectl(ctx, "create", "priorityclass", "inference", "--value=100000", "--description=Inference goes before batch jobs.")
	require.NoError(t, err, out)
	t.Cleanup(func() {
		out, err := cluster.Kubectl(ctx, "delete", "priorityclass", "inference")
		assert.NoError(t, err, out)
	})
	out, err = cluster.Kubectl(ctx, "apply", "--dry-run=server", "--namespace=default", "--filename="+filepath.Join(root, "examples/kubernetes"))
	require.NoError(t, err, out)
	require.GreaterOrEqual(t, strings.Count(out, "(server dry run)"), 30, out)
}
