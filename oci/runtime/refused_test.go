package ociruntime

import (
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

// A directory of the host that is mounted over one of our places stays as it is.
func TestVolumeOverOurPlaces(t *testing.T) {
	b := newBench(t)
	path := filepath.Join(b.bundle(t, "docker-20"), configName)
	bundle, err := OpenBundle(path)
	require.NoError(t, err)
	dir := filepath.Join(b.dir, "etc")
	require.NoError(t, os.Mkdir(dir, 0o755))
	bundle.Spec.Mounts = append(bundle.Spec.Mounts, rspec.Mount{Destination: "/etc", Type: "bind", Source: dir, Options: []string{"rbind"}})
	require.NoError(t, bundle.Save())
	require.NoError(t, os.Remove(beside(path, originalSuffix)))
	require.ErrorContains(t, b.make(filepath.Dir(path)), "for which the runtime would make "+dir+"/ld.so.preload on the host")
	require.Empty(t, b.claims(t))
}
