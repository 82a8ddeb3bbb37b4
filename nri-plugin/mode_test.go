package nriplugin_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
)

// How a container is held is decided by the node's limiter mode, is in its annotation and
// in its claim, and is known again after the claim was lost, whatever the mode is then.
func TestLimiterModeIsPublished(t *testing.T) {
	for _, test := range []struct {
		mode           oci.LimiterMode
		want           string
		preload, front bool
	}{
		{"", "preload", true, false},
		{oci.LimiterPreload, "preload", true, false},
		{oci.LimiterLibrary, "library", false, true},
		{oci.LimiterAuto, "preload+library", true, true},
	} {
		t.Run("mode "+string(test.mode), func(t *testing.T) {
			mode := test.mode
			f := newFixture(t, func(c *nriplugin.Config) {
				settings := c.Settings()
				settings.Stubs = oci.Stubs{CUDA: "/var/lib/gpuslice/lib/libvgpu-cuda-0.so", NVML: "/var/lib/gpuslice/lib/libvgpu-nvml-0.so"}
				c.Settings = func() oci.Settings { settings.LimiterMode = mode; return settings }
			})
			pod, ctr := newPod("p", named("main", gpuB, 8000, 30)), newContainer("main")
			spec, err := f.runtime.create(pod, ctr)
			require.NoError(t, err)
			require.Equal(t, test.want, spec.Annotations[api.AnnotationEnforcement])
			require.Equal(t, test.preload, sourceOf(spec, "/etc/ld.so.preload") != "")
			driver := "/usr/lib/libcuda.so.1"
			if test.front {
				require.Equal(t, driver, sourceOf(spec, "/.gpuslice/driver/cuda"))
				driver = "/var/lib/gpuslice/lib/libvgpu-cuda-0.so"
			}
			require.Equal(t, driver, sourceOf(spec, "/usr/lib/libcuda.so.1"))
			require.Equal(t, test.want, f.claimedMode(ctr.Id))

			f.stop()
			require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))
			mode = oci.LimiterPreload
			f.start()
			require.Equal(t, test.want, f.claimedMode(ctr.Id))
		})
	}
}

// claimedMode is the enforcement in a container's claim.
func (f *fixture) claimedMode(id string) string {
	now, err := f.ledger.Snapshot(context.Background())
	require.NoError(f.t, err)
	for _, e := range now.Entries {
		if e.ContainerID == id {
			return e.Mode
		}
	}
	return ""
}
