package examples

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	resourcevalidation "k8s.io/kubernetes/pkg/apis/resource/validation"
)

// The ResourceSlices that package dra/devices makes are valid by the API server's own code.
func TestResourceSlices(t *testing.T) {
	files, err := filepath.Glob("../../../dra/devices/testdata/*.json")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 4)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var list []resourcev1.ResourceSlice
			require.NoError(t, json.Unmarshal(text, &list))
			require.NotEmpty(t, list)
			for _, slice := range list {
				require.NoError(t, checkSlice(&slice))
				if len(slice.Spec.Devices) == 0 {
					continue // counters
				}
				invalid := slice.DeepCopy()
				invalid.Spec.Devices = append(invalid.Spec.Devices, invalid.Spec.Devices[0])
				require.Error(t, checkSlice(invalid), "a device twice")
				invalid = slice.DeepCopy()
				invalid.Spec.Devices[0].Attributes["uuid"] = resourcev1.DeviceAttribute{}
				require.Error(t, checkSlice(invalid), "an attribute without a value")
			}
		})
	}
}

func checkSlice(slice *resourcev1.ResourceSlice) error {
	slice = slice.DeepCopy()
	legacyscheme.Scheme.Default(slice)
	var internal resource.ResourceSlice
	if err := legacyscheme.Scheme.Convert(slice, &internal, nil); err != nil {
		return err
	}
	return resourcevalidation.ValidateResourceSlice(&internal).ToAggregate()
}
