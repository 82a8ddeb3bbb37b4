package nriplugin_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/native"
)

// With the driver's memory limits a container has the hook, as its last one, and is refused where the driver has none. How it
// is limited is in its annotation and its claim, and is known again after the claim was lost.
func TestNativeMemoryLimits(t *testing.T) {
	for mode, want := range map[oci.MemoryEnforcement]string{oci.MemoryNative: "native", oci.MemoryBoth: "native+preload", oci.MemoryAuto: "native+preload"} {
		t.Run(string(mode), func(t *testing.T) {
			memory, noNative := mode, error(nil)
			f := newFixture(t, func(c *nriplugin.Config) {
				settings := c.Settings()
				settings.Native = native.Setup{Hook: "/var/lib/gpuslice/lib/gpuslice-runtime-0", StateDir: "/run/gpuslice"}
				c.Settings = func() oci.Settings { settings.Memory, settings.NoNative = memory, noNative; return settings }
			})
			pod, ctr := newPod("p", named("main", gpuB, 8000, 0)), newContainer("main")
			spec, err := f.runtime.create(pod, ctr)
			require.NoError(t, err)
			require.Equal(t, want, spec.Annotations[api.AnnotationEnforcement])
			require.Equal(t, want, f.claimedMode(ctr.Id))
			hooks := spec.Hooks.CreateRuntime
			assert.True(t, native.HasHook(hooks[len(hooks)-1:]))
			assert.Equal(t, mode != oci.MemoryNative, sourceOf(spec, "/etc/ld.so.preload") != "")

			f.stop()
			require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))
			memory = oci.MemoryLimiter
			f.start()
			require.Equal(t, want, f.claimedMode(ctr.Id))

			memory, noNative = mode, errors.New("driver 580 has no memory limits")
			pod, ctr = newPod("q", named("main", gpuB, 1000, 0)), newContainer("main")
			spec, err = f.runtime.create(pod, ctr)
			if mode == oci.MemoryAuto {
				require.NoError(t, err)
				require.Equal(t, "preload", spec.Annotations[api.AnnotationEnforcement])
				return
			}
			require.ErrorContains(t, err, "driver 580 has no memory limits")
			assert.Empty(t, f.claimedMode(ctr.Id), "no claim is left")
		})
	}
}
