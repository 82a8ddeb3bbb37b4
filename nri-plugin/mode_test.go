package nriplugin_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/ledger"
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

// The values of the pod and of the operator reach the limiter's files.
func TestCeilingAndPriorityReachTheClaim(t *testing.T) {
	claims := map[string]ledger.Claim{}
	f := newFixture(t, func(c *nriplugin.Config) {
		c.HighPriorityNamespaces = []string{"default"}
		populate := c.Populate
		c.Populate = func(dir string, claim ledger.Claim) error {
			claims[claim.ContainerID] = claim
			return populate(dir, claim)
		}
	})
	annotations := named("main", gpuB, 8000, 30)
	annotations[api.AnnotationVcudaCoreCeiling] = "70"
	ctr := newContainer("main", "CUDA_TASK_PRIORITY=0")
	_, err := f.runtime.create(newPod("p", annotations), ctr)
	require.NoError(t, err)
	assert.Equal(t, 70, claims[ctr.Id].CoreCeiling)
	assert.True(t, claims[ctr.Id].HighPriority)

	annotations = named("main", gpuB, 8000, 30)
	annotations[api.AnnotationCoreCeiling] = "much"
	_, err = f.runtime.create(newPod("q", annotations), newContainer("main"))
	require.ErrorContains(t, err, api.AnnotationCoreCeiling)

	elsewhere := newPod("r", named("main", gpuA, 8000, 30))
	elsewhere.Namespace = "other"
	ctr = newContainer("main", "CUDA_TASK_PRIORITY=0")
	_, err = f.runtime.create(elsewhere, ctr)
	require.NoError(t, err)
	assert.False(t, claims[ctr.Id].HighPriority, "a container can't set its own priority")
}

// A container's request for priority, which the webhook makes of nvidia.com/priority, counts where the operator allows it.
// The container's variable has what it got.
func TestRequestedPriority(t *testing.T) {
	for _, test := range []struct {
		description string
		namespaces  []string
		env         []string
		high        bool
		shown       string // CUDA_TASK_PRIORITY in the container
	}{
		{"not allowed", nil, []string{"CUDA_TASK_PRIORITY=0"}, false, "1"},
		{"allowed elsewhere", []string{"lab"}, []string{"CUDA_TASK_PRIORITY=0"}, false, "1"},
		{"allowed here", []string{"lab", "default"}, []string{"CUDA_TASK_PRIORITY=0"}, true, "0"},
		{"allowed everywhere", []string{"*"}, []string{"CUDA_TASK_PRIORITY=0"}, true, "0"},
		{"low", []string{"*"}, []string{"CUDA_TASK_PRIORITY=1"}, false, "1"},
		{"no number", []string{"*"}, []string{"CUDA_TASK_PRIORITY=00"}, false, "1"},
		{"not requested", []string{"*"}, nil, false, ""},
	} {
		t.Run(test.description, func(t *testing.T) {
			claims := map[string]ledger.Claim{}
			f := newFixture(t, func(c *nriplugin.Config) {
				c.RequestedPriorityNamespaces = test.namespaces
				populate := c.Populate
				c.Populate = func(dir string, claim ledger.Claim) error {
					claims[claim.ContainerID] = claim
					return populate(dir, claim)
				}
			})
			ctr := newContainer("main", test.env...)
			spec, err := f.runtime.create(newPod("p", named("main", gpuB, 8000, 30)), ctr)
			require.NoError(t, err)
			require.Equal(t, test.high, claims[ctr.Id].HighPriority)
			value, _ := envOf(spec, "CUDA_TASK_PRIORITY")
			require.Equal(t, test.shown, value)
		})
	}
}

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
