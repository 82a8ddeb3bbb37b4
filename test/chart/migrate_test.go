//go:build root

package chart

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
)

// The chart installs with the values that `kubectl gpuslice migrate` prints, and its agents select the nodes that migrate switches.
// A test of cmd/internal/migrate compares the files.
func TestValuesOfMigrate(t *testing.T) {
	files, err := filepath.Glob("../../cmd/internal/migrate/testdata/values-*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	const hami = "'system:serviceaccount:kube-system:hami-device-plugin', 'system:serviceaccount:kube-system:hami-scheduler'"
	writers := map[string]string{
		"values-hami.yaml": hami, "values-hami-all.yaml": hami,
		"values-tencent.yaml": "'system:serviceaccount:kube-system:default', 'system:serviceaccount:kube-system:gpu-manager'",
	}
	for _, file := range files {
		agents, refuses := 0, false
		for _, object := range objects(t, render(t, "gpuslice-system", file)) {
			if p, is := object.(*admissionregistrationv1.ValidatingAdmissionPolicy); is && strings.HasSuffix(p.Name, "-annotations") {
				refuses = true
				require.Contains(t, p.Spec.MatchConditions[0].Expression, writers[filepath.Base(file)], "%s: the scheduler that is migrated from goes on", file)
			}
			d, is := object.(*appsv1.DaemonSet)
			if !is {
				continue
			}
			agents++
			require.Equal(t, map[string]string{"gpuslice.io/migrated": "true"}, d.Spec.Template.Spec.NodeSelector, file)
			require.Equal(t, "gpuslice", d.Labels["app.kubernetes.io/name"])
			require.Equal(t, "agent", d.Labels["app.kubernetes.io/component"])
			require.Nil(t, d.Spec.Template.Spec.Affinity, "no other label is needed")
		}
		require.Equal(t, 1, agents, file)
		require.True(t, refuses, file)
	}
}
