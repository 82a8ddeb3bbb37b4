//go:build root

package chart

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
)

// The chart installs with the values that `kubectl gpuslice migrate` prints, and its agents select the nodes that migrate switches.
// A test of cmd/internal/migrate compares the files.
func TestValuesOfMigrate(t *testing.T) {
	files, err := filepath.Glob("../../cmd/internal/migrate/testdata/values-*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		agents := 0
		for _, object := range objects(t, render(t, "gpuslice-system", file)) {
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
	}
}
