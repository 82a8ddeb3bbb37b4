//go:build root

package chart

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
)

// Another namespace by value gives what another namespace of the release gives.
func TestNamespaceOverride(t *testing.T) {
	for variant, values := range map[string][]string{
		"extender": variants["extender"],
		"plugin": slices.Concat(variants["monitored"], variants["openshift"], []string{
			`discovery.enabled=true`, `networkPolicy={"enabled":true,"egress":true,"cilium":true}`, `agent.nodeConfig={"nodeconfig":[{"name":"n1","devicesplitcount":5}]}`,
			`scheduler.settings={"gpuQuota":"kube-system/gpuquota"}`, `scheduler.hamiNodes=true`, `monitoring.prometheusRule.enabled=true`, `monitoring.dashboard.enabled=true`,
		}),
	} {
		t.Run(variant, func(t *testing.T) {
			require.Equal(t, render(t, "elsewhere", values...), render(t, "gpus", slices.Concat(values, []string{`namespaceOverride="elsewhere"`})...))
		})
	}
	// And so in what these don't render: only helm itself is given the release's.
	files, err := filepath.Glob(filepath.Join(chartDir, "templates/*"))
	require.NoError(t, err)
	more, err := filepath.Glob(filepath.Join(chartDir, "templates/*/*"))
	require.NoError(t, err)
	for _, file := range append(files, more...) {
		text, err := os.ReadFile(file)
		if errors.Is(err, syscall.EISDIR) {
			continue
		}
		require.NoError(t, err)
		want := map[string]int{"_helpers.tpl": 1, "NOTES.txt": 1}[filepath.Base(file)]
		require.Equal(t, want, strings.Count(string(text), ".Release.Namespace"), file)
	}
}

// nameOverride is what stands behind the release's name, and fullnameOverride goes before it.
func TestNameOverride(t *testing.T) {
	require.Equal(t, render(t, "gpus", `fullnameOverride="gpuslice-shares"`), render(t, "gpus", `nameOverride="shares"`))
	require.Equal(t, render(t, "gpus"), render(t, "gpus", `nameOverride="slice"`), "the release is called gpuslice")
	require.Equal(t, render(t, "gpus", `fullnameOverride="a"`), render(t, "gpus", `fullnameOverride="a"`, `nameOverride="b"`))
	require.NotContains(t, render(t, "gpus", `nameOverride="shares"`), "app.kubernetes.io/name: shares", "kubectl gpuslice finds pods by it")
}

// Each Deployment and DaemonSet keeps that number of old revisions.
func TestRevisionHistoryLimit(t *testing.T) {
	for _, limit := range []int32{10, 2} {
		values := []string{fmt.Sprintf("revisionHistoryLimit=%d", limit), `discovery.enabled=true`}
		found := slices.Concat(objects(t, render(t, "gpus", values...)), objects(t, render(t, "gpus", append(values, variants["extender"]...)...)))
		kept := map[string]int32{}
		for _, o := range found {
			switch o := o.(type) {
			case *appsv1.Deployment:
				kept[o.Name] = *o.Spec.RevisionHistoryLimit
			case *appsv1.DaemonSet:
				kept[o.Name] = *o.Spec.RevisionHistoryLimit
			}
		}
		require.Equal(t, map[string]int32{
			"gpuslice-agent": limit, "gpuslice-discovery": limit, "gpuslice-scheduler": limit, "gpuslice-extender": limit, "gpuslice-webhook": limit,
		}, kept)
	}
}
