//go:build root

package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// withNotes returns a copy of the chart with another object, which has the notes: `helm template` omits them and
// `helm install` requires a cluster.
func withNotes(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gpuslice")
	out, err := exec.Command("cp", "-rL", chartDir, dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(filepath.Join(dir, "templates", "NOTES.txt"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "templates", "_notes.tpl"), []byte(`{{ define "notes" }}`+string(text)+`{{ end }}`), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "templates", "notes.yaml"), []byte(
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  notes: {{ include \"notes\" . | quote }}\n"), 0o644))
	return dir
}

// notes is helm's output after an install.
func notes(t *testing.T, values ...string) string {
	t.Helper()
	dir := withNotes(t)
	args := []string{"template", "gpuslice", dir, "--namespace", "gpus", "--kube-version", "1.36.3", "--show-only", "templates/notes.yaml"}
	for _, v := range values {
		args = append(args, "--set-json", v)
	}
	rendered, errs, err := helm(t, args...)
	require.NoError(t, err, "%s", errs)
	said := objects(t, rendered)[0].(*corev1.ConfigMap).Data["notes"]
	require.NotContains(t, said, "<no value>")
	return said
}

// helm's output after an install matches what was installed.
func TestNotes(t *testing.T) {
	const (
		extender, unsigned, privileged, open, names, restart, byHand = "install/scheduler/extender-config.yaml", "grants are not signed", "the agents are privileged", "networkPolicy.enabled=false", "schedulerName:", "ACTION: the agents' pods have installed the barrier", "WARNING: barrier.install is false"
	)
	for variant, want := range map[string][]string{
		"default": {open, restart}, "extender": {extender, open, restart}, "privileged": {privileged, open}, "hami": {unsigned, open, restart}, "monitored": {restart},
		"agent-only": {open, names}, "other-names": {open, restart}, "no-barrier": {open, byHand},
		"placed": {open, restart}, "gpu-operator": {open, restart}, "discovery": {restart},
	} {
		t.Run(variant, func(t *testing.T) {
			said := notes(t, variants[variant]...)
			for _, each := range []string{extender, unsigned, privileged, open, names, restart, byHand} {
				require.Equal(t, strings.Contains(said, each), slices.Contains(want, each), "%s:\n%s", each, said)
			}
			byLabel, byOperator := "gpuslice.io/has-gpu=true", "nvidia.com/gpu.deploy.device-plugin=false"
			require.Equal(t, variant != "placed" && variant != "gpu-operator" && variant != "discovery", strings.Contains(said, byLabel), said)
			require.Equal(t, variant == "gpu-operator", strings.Contains(said, byOperator), said)
			require.Equal(t, variant == "discovery", strings.Contains(said, "rollout status daemonset/gpuslice-discovery"), said)
			daemonset := regexp.MustCompile(`rollout status daemonset/(\S+)`).FindStringSubmatch(said)
			require.NotNil(t, daemonset, said)
			all := workloads(objects(t, render(t, "gpus", variants[variant]...)))
			require.True(t, slices.ContainsFunc(all, func(w workload) bool { return w.name == daemonset[1] }), "there is no daemonset %s", daemonset[1])
		})
	}
}
