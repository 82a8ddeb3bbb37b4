package nriplugin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// CUDA_DISABLE_CONTROL takes the limiter away where the operator lets it, and nothing
// else: not the GPU's identity, not the reservation.
func TestUserSwitchesTheLimiterOff(t *testing.T) {
	for _, test := range []struct {
		description string
		namespaces  []string
		env         []string
		want        string // how it is enforced
		off, stays  uint64
	}{
		{"not allowed", nil, []string{"CUDA_DISABLE_CONTROL=true"}, "preload", 0, 1},
		{"allowed elsewhere", []string{"lab"}, []string{"CUDA_DISABLE_CONTROL=true"}, "preload", 0, 1},
		{"allowed here", []string{"lab", "default"}, []string{"CUDA_DISABLE_CONTROL=true"}, "none", 1, 0},
		{"allowed everywhere", []string{"*"}, []string{"CUDA_DISABLE_CONTROL=true"}, "none", 1, 0},
		{"allowed and not asked for", []string{"*"}, nil, "preload", 0, 0},
		{"another value", []string{"*"}, []string{"CUDA_DISABLE_CONTROL=1"}, "preload", 0, 0},
		{"asked for and taken back", []string{"*"}, []string{"CUDA_DISABLE_CONTROL=false"}, "preload", 0, 0},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t, func(c *nriplugin.Config) { c.OptOutNamespaces = test.namespaces })
			pod, ctr := newPod("p", named("main", gpuB, 8000, 30)), newContainer("main", test.env...)
			spec, err := f.runtime.create(pod, ctr)
			require.NoError(t, err)
			require.Equal(t, test.want, spec.Annotations[api.AnnotationEnforcement])
			require.Equal(t, []string{"/dev/nvidiactl", "/dev/nvidia1"}, gpuNodes(spec), "its GPU and no other")
			limited := test.want == "preload"
			require.Equal(t, limited, sourceOf(spec, "/etc/ld.so.preload") != "")
			require.NotEmpty(t, sourceOf(spec, "/.gpuslice"), "its grant can be read back")
			if !limited {
				value, times := envOf(spec, "CUDA_DISABLE_CONTROL")
				require.Equal(t, "true", value)
				require.Equal(t, 1, times)
			}
			require.Equal(t, []string{ctr.Id}, f.claims(), "it is reserved")
			off, stays := f.plugin.OptOuts()
			require.Equal(t, []uint64{test.off, test.stays}, []uint64{off, stays})
		})
	}
}
