package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/nvidia"
)

// The kubelet chooses MIG devices itself: a cordoned one is reported as unhealthy.
// GPUs are chosen by a scheduler, and stay as they are.
func TestCordonedMIGDevicesAreNotOffered(t *testing.T) {
	o := parsed(t, "--mig-strategy=mixed")
	for _, test := range []struct {
		cordoned []string
		want     map[string]bool
	}{
		{nil, map[string]bool{"GPU-a": true, "MIG-B": true}},
		{[]string{"GPU-B"}, map[string]bool{"GPU-a": true, "MIG-B": false}},
		{[]string{"MIG-B"}, map[string]bool{"GPU-a": true, "MIG-B": false}},
		{[]string{"GPU-a"}, map[string]bool{"GPU-a": true, "MIG-B": true}},
	} {
		now := o.offerOf(look("aB"), nodeconfig.Settings{}, nil, nil)
		now.Cordoned = test.cordoned
		got := map[string]bool{}
		for _, gpus := range o.forKubelet(now) {
			for _, c := range gpus {
				got[c.UUID] = c.Healthy
			}
		}
		assert.Equal(t, test.want, got, "%v", test.cordoned)
	}
}

// A cordon is seen within a second, and one that can't be read takes none back.
func TestCordonsAreFollowed(t *testing.T) {
	const gpu = "GPU-0a000000-1111-2222-3333-444455556666"
	o := parsed(t)
	o.StateDir = t.TempDir()
	p := newPublisher(o, nvidia.NewCache(nvml.New(nvml.WithLibraryPath("/nonexistent")), nvidia.CacheOptions{}), quietLog)
	require.False(t, p.due())
	list := filepath.Join(o.StateDir, "cordoned")
	require.NoError(t, os.WriteFile(list, []byte(gpu+"\n"), 0o600))
	require.True(t, p.due())
	p.current.Store(&offer{Cordoned: p.cordons()})
	assert.Equal(t, []string{gpu}, p.now().Cordoned)
	require.False(t, p.due())
	require.NoError(t, os.WriteFile(list, []byte("GPU 0\n"), 0o600))
	require.False(t, p.due())
	assert.Equal(t, []string{gpu}, p.cordons())
	require.NoError(t, os.Remove(list))
	require.True(t, p.due())
	assert.Empty(t, p.cordons())
}
