package oci

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFeatured(t *testing.T) {
	dir := t.TempDir()
	gds, err := NewRegistry(RegistryConfig{Kind: "nvidia.com/gds", Dirs: []string{dir}})
	require.NoError(t, err)
	featured := DriverFeatures{GPUs: testRegistry(t), Features: []*Registry{gds}}

	_, err = featured.DeviceEdits([]string{gpu0})
	require.ErrorContains(t, err, "nvidia.com/gds is configured")
	require.ErrorContains(t, err, "nvidia-ctk cdi generate --mode=gds")
	_, err = featured.DeviceEdits([]string{gpuX})
	require.ErrorContains(t, err, gpuX)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "gds.yaml"), []byte(`{"cdiVersion":"0.5.0","kind":"nvidia.com/gds","devices":[{"name":"all","containerEdits":{"mounts":[{"hostPath":"/etc/cufile.json","containerPath":"/etc/cufile.json"}]}}]}`), 0o600))
	gds.Refresh()
	gpus, err := testRegistry(t).DeviceEdits([]string{gpu0})
	require.NoError(t, err)
	edits, err := featured.DeviceEdits([]string{gpu0})
	require.NoError(t, err)
	assert.Equal(t, gpus.DeviceNodes, edits.DeviceNodes)
	require.Len(t, edits.Mounts, len(gpus.Mounts)+1)
	assert.Equal(t, "/etc/cufile.json", edits.Mounts[len(edits.Mounts)-1].ContainerPath)
}
