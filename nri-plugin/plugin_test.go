package nriplugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/test/granttest"
)

func TestContainerWithGrantGetsItsShare(t *testing.T) {
	for _, test := range []struct {
		description string
		annotations map[string]string
	}{
		{"HAMi's annotation", hami(gpuB, 8000, 30)},
		{"our annotation", named("main", gpuB, 8000, 30)},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t)
			pod := newPod("p", test.annotations)
			ctr := newContainer("main", "NVIDIA_VISIBLE_DEVICES=all", "CUDA_DEVICE_MEMORY_LIMIT_0=999999m", "CUDA_DISABLE_CONTROL=true")
			ctr.Mounts = []*api.Mount{
				{Destination: "/etc/ld.so.preload", Source: "/mine/preload", Type: "bind", Options: []string{"bind"}},
				{Destination: "/.gpuslice/../.gpuslice/limits", Source: "/mine/limits", Type: "bind", Options: []string{"bind"}},
				{Destination: "/.gpuslice", Source: "/mine/vgpu", Type: "bind", Options: []string{"bind"}},
				{Destination: "/data", Source: "/mine/data", Type: "bind", Options: []string{"bind"}},
			}
			spec, err := f.runtime.create(pod, ctr)
			require.NoError(t, err)

			for name, want := range map[string]string{
				"NVIDIA_VISIBLE_DEVICES":          "void", // the CDI spec's edits make the GPU visible
				"CUDA_DEVICE_MEMORY_LIMIT_0":      "8000m",
				"CUDA_DEVICE_SM_LIMIT":            "30",
				"CUDA_DEVICE_SM_LIMIT_0":          "30",
				"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/.gpuslice/usage",
				"CUDA_DISABLE_CONTROL":            "false",
				"PATH":                            "/bin",
			} {
				got, times := envOf(spec, name)
				require.Equal(t, want, got, name)
				require.Equal(t, 1, times, name)
			}
			dir := f.ledger.Dir(ctr.Id)
			require.Equal(t, limiter.FilesDir(dir), sourceOf(spec, "/.gpuslice"))
			require.Equal(t, limiter.UsagePath(dir), sourceOf(spec, "/.gpuslice/usage"))
			require.Equal(t, f.config.Settings().LibraryPath, sourceOf(spec, "/.gpuslice/libvgpu.so"))
			require.Equal(t, f.config.Settings().PreloadPath, sourceOf(spec, "/etc/ld.so.preload"))
			require.Equal(t, "/mine/data", sourceOf(spec, "/data"))
			require.Equal(t, "preload", spec.Annotations[gpuapi.AnnotationEnforcement])
			require.Equal(t, []string{"/dev/nvidiactl", "/dev/nvidia1"}, gpuNodes(spec))
			require.Len(t, spec.Hooks.CreateContainer, 1)
			require.NotEmpty(t, spec.Linux.Resources.Devices, "the cgroup must allow the GPU")
			for _, m := range spec.Mounts {
				require.NotContains(t, m.Source, "/mine/vgpu", "the pod's own mount on the limiter's directory has to go")
				if m.Destination == "/.gpuslice" {
					require.Contains(t, m.Options, "ro")
				}
			}

			require.Equal(t, []string{ctr.Id}, f.claims())
			f.runtime.stop(pod, ctr)
			require.Empty(t, f.claims())
			require.Equal(t, []string{ctr.Id}, f.dirs(), "the container still maps its files")
			f.runtime.remove(pod, ctr)
			require.Empty(t, f.dirs())
		})
	}
}

func TestContainerWithoutGrantGetsNothing(t *testing.T) {
	nvidia0 := &api.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195}
	for _, test := range []struct {
		description string
		container   *api.Container
		wantVoid    bool
		wantRefused string
	}{
		{description: "asks for nothing", container: &api.Container{}},
		{description: "its image asks for all", container: &api.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}, wantVoid: true},
		{description: "it names a GPU", container: &api.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=" + gpuA}}, wantVoid: true},
		{description: "already void", container: &api.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}},
		{description: "an image that sets it twice", container: &api.Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"}}, wantRefused: "more than once"},
		{description: "a device node from elsewhere", container: &api.Container{Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{nvidia0}}}, wantRefused: "/dev/nvidia0"},
		{description: "a CDI device from elsewhere", container: &api.Container{CDIDevices: []*api.CDIDevice{{Name: "nvidia.com/gpu=all"}}}, wantRefused: "nvidia.com/gpu=all"},
		{description: "asks the nvidia runtime by a mount", container: &api.Container{Mounts: []*api.Mount{{Destination: "/var/run/nvidia-container-devices/all", Source: "/dev/null"}}}, wantRefused: "nvidia-container-devices"},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t)
			ctr := newContainer("main")
			ctr.Env, ctr.Linux, ctr.CDIDevices, ctr.Mounts = test.container.Env, test.container.Linux, test.container.CDIDevices, test.container.Mounts
			spec, err := f.runtime.create(newPod("p", nil), ctr)
			if test.wantRefused != "" {
				require.ErrorContains(t, err, test.wantRefused)
				require.ErrorContains(t, err, "default/p")
				require.ErrorContains(t, err, `"main"`)
				return
			}
			require.NoError(t, err)
			value, times := envOf(spec, "NVIDIA_VISIBLE_DEVICES")
			if test.wantVoid {
				require.Equal(t, "void", value)
				require.Equal(t, 1, times)
			}
			require.NotEqual(t, "all", value)
			require.Empty(t, gpuNodes(spec))
			require.Empty(t, f.dirs())
		})
	}
}

func TestRefusedGrants(t *testing.T) {
	for _, test := range []struct {
		description string
		annotations map[string]string
		want        []string
	}{
		{"a malformed annotation", map[string]string{"gpuslice.io/grant": "{"}, []string{"gpuslice.io/grant"}},
		{"a malformed HAMi annotation", hami(gpuA, -5, 30), []string{"hami.io/vgpu-devices-to-allocate"}},
		{"our malformed one is not replaced by HAMi's good one", map[string]string{
			"gpuslice.io/grant": "{}", "hami.io/vgpu-devices-to-allocate": hami(gpuA, 1000, 10)["hami.io/vgpu-devices-to-allocate"],
		}, []string{"gpuslice.io/grant"}},
		{"an unknown GPU", hami("GPU-cccccccc-0000-4000-8000-000000000003", 1000, 10), []string{"GPU-cccccccc", "no such GPU"}},
		{"more than the GPU", hami(gpuA, 81921, 10), []string{"81921"}},
		{"another node", map[string]string{"gpuslice.io/grant": `{"version":1,"node":"other","containers":{"main":[{"uuid":"` + gpuA + `","memoryMiB":1,"cores":1}]}}`}, []string{"other"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t)
			_, err := f.runtime.create(newPod("p", test.annotations), newContainer("main"))
			require.Error(t, err)
			for _, want := range append(test.want, "default/p", `"main"`) {
				require.ErrorContains(t, err, want)
			}
			require.Empty(t, f.dirs())
			require.NoError(t, f.plugin.Ready(), "a refusal must not cost the connection")
		})
	}
}

// Every malformed annotation that the grant's codecs know of, through the whole of
// NRI: refused with a message that names pod, container and field, and nothing kept.
func TestMalformedAnnotations(t *testing.T) {
	f := newFixture(t, func(c *nriplugin.Config) {
		// One that orders two containers, so that positions are looked at at all.
		c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
			return []grant.ContainerDevices{{Name: "main", Devices: 1}}, nil
		})
	})
	cases := granttest.MalformedCases(granttest.Node{
		Name: nodeName, GPU: gpuA, Other: gpuB, Missing: "GPU-cccccccc-0000-4000-8000-000000000003", GPUMiB: 81920,
	})
	require.GreaterOrEqual(t, len(cases), 40)
	for _, test := range cases {
		_, err := f.runtime.create(newPod("p", test.Annotations), newContainer("main"))
		if !assert.Error(t, err, test.Description) {
			continue
		}
		assert.Empty(t, f.dirs(), test.Description)
		if strings.Contains(err.Error(), "invalid UTF-8") {
			continue // NRI's own wire refuses it before we see it
		}
		wanted := append(test.Says, "default/p", `"main"`)
		if strings.Contains(err.Error(), "labels and annotations") {
			wanted = []string{"default/p", "64 KiB"} // the size is checked first
		}
		for _, want := range wanted {
			assert.ErrorContains(t, err, want, test.Description)
		}
	}
	require.Equal(t, 1, f.runtime.proxy.connections())
}

func TestOverbookedGPUIsRefused(t *testing.T) {
	f := newFixture(t)
	first := newPod("first", hami(gpuA, 50000, 50))
	main := newContainer("main")
	_, err := f.runtime.create(first, main)
	require.NoError(t, err)
	_, err = f.runtime.create(newPod("second", hami(gpuA, 50000, 50)), newContainer("main"))
	require.ErrorIs(t, errors.Join(err), err)
	require.ErrorContains(t, err, "default/second")
	require.ErrorContains(t, err, gpuA)
	_, err = f.runtime.create(newPod("third", hami(gpuB, 50000, 50)), newContainer("main"))
	require.NoError(t, err)

	f.runtime.stop(first, main)
	_, err = f.runtime.create(newPod("second", hami(gpuA, 50000, 50)), newContainer("main"))
	require.NoError(t, err, "what a stopped container held is free at once")
}

// The kubelet creates attempt N+1 of a container before it removes attempt N, and
// N's Stop may be delivered late.
func TestNextAttemptTakesItsPredecessorsPlace(t *testing.T) {
	f := newFixture(t)
	pod := newPod("p", hami(gpuA, 81920, 100))
	first, second := newContainer("main"), newContainer("main")
	_, err := f.runtime.create(pod, first)
	require.NoError(t, err)
	_, err = f.runtime.create(pod, second)
	require.NoError(t, err)
	f.runtime.stop(pod, first)
	f.runtime.remove(pod, first)
	require.Equal(t, []string{second.Id}, f.claims())
	require.Equal(t, []string{second.Id}, f.dirs())
}

// An annotation with one entry is the one container's that the scheduler saw. A container
// that is added later (kubectl debug) must not double the grant.
func TestEphemeralContainerDoesNotShareThePosition(t *testing.T) {
	f := newFixture(t)
	pod := newPod("p", hami(gpuA, 1000, 10))
	_, err := f.runtime.create(pod, newContainer("main"))
	require.NoError(t, err)
	spec, err := f.runtime.create(pod, newContainer("debugger", "NVIDIA_VISIBLE_DEVICES=all"))
	require.NoError(t, err)
	value, _ := envOf(spec, "NVIDIA_VISIBLE_DEVICES")
	require.Equal(t, "void", value)
	require.Len(t, f.claims(), 1)
}

type namesFunc func(context.Context, grant.Pod) ([]grant.ContainerDevices, error)

func (f namesFunc) ContainerNames(ctx context.Context, pod grant.Pod) ([]grant.ContainerDevices, error) {
	return f(ctx, pod)
}

func TestPositionalAnnotationOfSeveralContainers(t *testing.T) {
	annotations := map[string]string{"hami.io/vgpu-devices-to-allocate": gpuA + ",NVIDIA,1000,10:;;" + gpuB + ",NVIDIA,2000,20:;"}
	t.Run("refused without the order of the containers", func(t *testing.T) {
		f := newFixture(t)
		_, err := f.runtime.create(newPod("p", annotations), newContainer("b"))
		require.ErrorContains(t, err, "default/p")
	})
	t.Run("resolved by the kubelet's order", func(t *testing.T) {
		f := newFixture(t, func(c *nriplugin.Config) {
			c.Names = namesFunc(func(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
				return []grant.ContainerDevices{{Name: "a", Devices: 1}, {Name: "sidecar"}, {Name: "b", Devices: 1}}, nil
			})
		})
		pod := newPod("p", annotations)
		spec, err := f.runtime.create(pod, newContainer("b"))
		require.NoError(t, err)
		value, _ := envOf(spec, "CUDA_DEVICE_MEMORY_LIMIT_0")
		require.Equal(t, "2000m", value)
		spec, err = f.runtime.create(pod, newContainer("sidecar"))
		require.NoError(t, err)
		require.Empty(t, gpuNodes(spec))
	})
}

func TestExemptNamespaceIsLeftAlone(t *testing.T) {
	f := newFixture(t, func(c *nriplugin.Config) { c.ExemptNamespaces = []string{"gpu-operator"} })
	pod := newPod("p", nil)
	pod.Namespace = "gpu-operator"
	spec, err := f.runtime.create(pod, newContainer("dcgm", "NVIDIA_VISIBLE_DEVICES=all"))
	require.NoError(t, err)
	value, _ := envOf(spec, "NVIDIA_VISIBLE_DEVICES")
	require.Equal(t, "all", value)
}

func TestCreationThatFailsLaterLeavesNothing(t *testing.T) {
	f := newFixture(t)
	ctr := newContainer("main")
	_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), ctr)
	require.NoError(t, err)
	// containerd's undo: the id and nothing else.
	f.runtime.remove(nil, &api.Container{Id: ctr.Id})
	require.Empty(t, f.dirs())
}

func TestPopulateThatFailsLeavesNothing(t *testing.T) {
	f := newFixture(t, func(c *nriplugin.Config) {
		c.Populate = func(string, ledger.Claim) error { return errors.New("no space left on device") }
	})
	_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main"))
	require.ErrorContains(t, err, "no space left on device")
	require.Empty(t, f.dirs())
}

func TestNewChecksItsConfiguration(t *testing.T) {
	_, err := nriplugin.New(nriplugin.Config{Unscheduled: "Share"})
	for _, field := range []string{"NodeName", "Ledger", "GPUs", "Populate", "Devices", "Log", "Unscheduled"} {
		require.ErrorContains(t, err, field)
	}
}

// A claim that could not be released is released later, and the
// runtime, which waits, is answered in time: to be late would cost the connection.
func TestPendingReleasesAreDone(t *testing.T) {
	f := newFixtureInTime(t, 2*time.Second)
	pod, ctr := newPod("p", hami(gpuA, 1000, 10)), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)

	// Another process keeps the ledger's lock for longer than the runtime waits.
	release := holdLedger(t, f.ledger)
	f.runtime.remove(pod, ctr)
	require.NoError(t, f.plugin.Ready())
	_, err = f.runtime.create(newPod("none", nil), newContainer("main"))
	require.NoError(t, err, "a container that needs no ledger is not held up")
	release()
	require.Eventually(t, func() bool { return len(f.dirs()) == 0 }, time.Minute, 50*time.Millisecond)
	require.Equal(t, 1, f.runtime.proxy.connections(), "the first connection lasts")
}

func TestEditedSpecIsComplete(t *testing.T) {
	f := newFixture(t)
	spec, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 0)), newContainer("main"))
	require.NoError(t, err)
	for _, d := range spec.Linux.Devices {
		require.NotEmpty(t, d.Type, d.Path)
		require.Equal(t, int64(195), d.Major, d.Path)
	}
	require.Condition(t, func() bool { return hasRule(spec.Linux.Resources.Devices, 195, 0) })
	require.Condition(t, func() bool { return !hasRule(spec.Linux.Resources.Devices, 195, 1) }, "only the granted GPU")
}

func hasRule(rules []rspec.LinuxDeviceCgroup, major, minor int64) bool {
	for _, r := range rules {
		if r.Allow && r.Major != nil && *r.Major == major && r.Minor != nil && *r.Minor == minor {
			return true
		}
	}
	return false
}

// holdLedger takes the ledger's lock as another process would.
func holdLedger(t *testing.T, l *ledger.Ledger) (release func()) {
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(filepath.Dir(l.Dir("x"))), "lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	flock(t, lock)
	return func() { lock.Close() }
}
