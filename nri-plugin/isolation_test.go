package nriplugin_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/native"
)

// wanting is a pod's annotations with a request for isolation.
func wanting(isolation string, annotations map[string]string) map[string]string {
	with := map[string]string{gpuapi.AnnotationIsolation: isolation}
	maps.Copy(with, annotations)
	return with
}

// enforcing is a node with this mode of limiting memory. It can be changed.
func enforcing(mode *oci.MemoryEnforcement, noNative *error) func(*nriplugin.Config) {
	return func(c *nriplugin.Config) {
		settings := c.Settings()
		settings.Native = native.Setup{Hook: "/var/lib/gpuslice/lib/gpuslice-runtime-0", StateDir: "/run/gpuslice"}
		c.Settings = func() oci.Settings { settings.Memory, settings.NoNative = *mode, *noNative; return settings }
	}
}

const wholeGPU = 81920

// A container of a pod that requests more isolation than the grant has on this node gets nothing, whatever placed the pod.
func TestIsolation(t *testing.T) {
	const limiter, both, auto = oci.MemoryLimiter, oci.MemoryBoth, oci.MemoryAuto
	noDriver := errors.New("driver 580 has no memory limits")
	hamiWhole := map[string]string{gpuapi.AnnotationMode: "mig"}
	maps.Copy(hamiWhole, hami(gpuB, 8000, 30))
	oldAndNew := wanting("limiter", named("main", gpuB, 8000, 30))
	oldAndNew[gpuapi.AnnotationMode] = "mig"
	for _, test := range []struct {
		description string
		mode        oci.MemoryEnforcement
		noNative    error
		pod         map[string]string
		container   map[string]string // annotations
		env         []string
		config      func(*nriplugin.Config)
		refused     string
	}{
		{description: "any", mode: limiter, pod: wanting("any", named("main", gpuB, 8000, 30))},
		{description: "limiter", mode: limiter, pod: wanting("limiter", named("main", gpuB, 8000, 30))},
		{description: "limiter, which the container disables", mode: limiter, pod: wanting("limiter", named("main", gpuB, 8000, 30)), env: []string{"CUDA_DISABLE_CONTROL=true"},
			config: func(c *nriplugin.Config) { c.OptOutNamespaces = []string{"*"} }, refused: "the isolation limiter is requested (annotation gpuslice.io/isolation), and the container disables its limiter"},
		{description: "driver", mode: both, pod: wanting("driver", named("main", gpuB, 8000, 30))},
		{description: "driver, on another node", mode: limiter, pod: wanting("driver", named("main", gpuB, 8000, 30)), refused: "only the limiter would hold"},
		{description: "driver, which can't", mode: auto, noNative: noDriver, pod: wanting("driver", named("main", gpuB, 8000, 30)), refused: "only the limiter would hold"},
		{description: "driver, with a whole GPU", mode: limiter, pod: wanting("driver", named("main", gpuB, wholeGPU, 0))},
		{description: "driver, by HAMi's scheduler", mode: limiter, pod: wanting("driver", hami(gpuB, 8000, 30)), refused: "only the limiter would hold"},
		{description: "hardware", mode: limiter, pod: wanting("hardware", named("main", gpuB, wholeGPU, 100))},
		{description: "hardware, a part", mode: both, pod: wanting("hardware", named("main", gpuB, wholeGPU-1, 100)), refused: "the grant is a part of a GPU"},
		{description: "hardware, by HAMi's scheduler", mode: limiter, pod: wanting("hardware", hami(gpuB, 8000, 30)), refused: "the grant is a part of a GPU"},
		{description: "hardware by HAMi's annotation and scheduler", mode: limiter, pod: hamiWhole, refused: "the grant is a part of a GPU"},
		{description: "both annotations, the weaker one ours", mode: limiter, pod: oldAndNew, refused: "the grant is a part of a GPU"},
		{description: "hardware, without a scheduler", mode: limiter, pod: wanting("hardware", nil), container: map[string]string{gpuapi.AnnotationReplicas: gpuB + "::0"},
			config: shareUnscheduled, refused: "the grant is a part of a GPU"},
		{description: "a MIG device", mode: limiter, pod: wanting("hardware", nil), container: mixed, config: cutUp},
		{description: "an unknown isolation", mode: limiter, pod: wanting("strong", named("main", gpuB, 8000, 30)), refused: `annotation gpuslice.io/isolation: "strong": must be`},
		{description: "no isolation", mode: limiter, pod: wanting("", named("main", gpuB, 8000, 30)), refused: "must be hardware, driver, limiter or any"},
		{description: "an annotation of the container requests nothing", mode: limiter, pod: wanting("hardware", named("main", gpuB, 8000, 30)),
			container: map[string]string{gpuapi.AnnotationIsolation: "any"}, refused: "the grant is a part of a GPU"},
		{description: "an unknown isolation of a container without a GPU", mode: limiter, pod: wanting("strong", named("other", gpuB, 8000, 30))},
	} {
		t.Run(test.description, func(t *testing.T) {
			change := []func(*nriplugin.Config){enforcing(&test.mode, &test.noNative)}
			if test.config != nil {
				change = append(change, test.config)
			}
			f := newFixture(t, change...)
			ctr := newContainer("main", test.env...)
			ctr.Annotations = test.container
			spec, err := f.runtime.create(newPod("p", test.pod), ctr)
			if test.refused == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.refused)
			require.ErrorContains(t, err, `pod default/p container "main"`)
			require.Nil(t, spec)
			require.Empty(t, f.dirs())
		})
	}
}

// A whole GPU is its container's as long as it runs.
func TestAWholeGPUIsNotShared(t *testing.T) {
	f := newFixture(t)
	pod, ctr := newPod("p", wanting("hardware", named("main", gpuB, wholeGPU, 100))), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	_, err = f.runtime.create(newPod("q", named("main", gpuB, 1, 0)), newContainer("main"))
	require.ErrorContains(t, err, "0 of 81920 MiB")
	f.runtime.remove(pod, ctr)

	_, err = f.runtime.create(newPod("q", named("main", gpuB, 1, 0)), newContainer("main"))
	require.NoError(t, err)
	_, err = f.runtime.create(pod, newContainer("main"))
	require.ErrorContains(t, err, "GPU "+gpuB)
}

// The node's mode changes while the pod has the node: what runs goes on, and a new container is refused.
func TestIsolationAfterARestartWithAnotherMode(t *testing.T) {
	mode, noNative := oci.MemoryBoth, error(nil)
	f := newFixture(t, enforcing(&mode, &noNative))
	pod, ctr := newPod("p", wanting("driver", named("main", gpuB, 8000, 30))), newContainer("main")
	_, err := f.runtime.create(pod, ctr)
	require.NoError(t, err)
	f.stop()
	mode = oci.MemoryLimiter
	f.start()
	require.Equal(t, []string{ctr.Id}, f.claims())
	f.runtime.remove(pod, ctr)
	_, err = f.runtime.create(pod, newContainer("main"))
	require.ErrorContains(t, err, "only the limiter would hold")
	require.ErrorContains(t, err, "delete the pod")
	require.Empty(t, f.dirs())
}

// The newest grant of a resized pod does not change what the pod requested when it was created.
func TestIsolationOfAResizedPod(t *testing.T) {
	f := newFixture(t, func(c *nriplugin.Config) {
		c.Newest = func(pod grant.Pod) grant.Pod {
			pod.Annotations = named("main", gpuB, 8000, 30)
			return pod
		}
	})
	_, err := f.runtime.create(newPod("p", wanting("hardware", named("main", gpuB, wholeGPU, 100))), newContainer("main"))
	require.ErrorContains(t, err, "the grant is a part of a GPU")
}

func TestIsolationOfResourceClaims(t *testing.T) {
	mode, noNative := oci.MemoryAuto, error(nil)
	f, store := withClaims(t, cutUp, enforcing(&mode, &noNative))
	const whole, device = "33333333-0000-4000-8000-00000000000c", "44444444-0000-4000-8000-00000000000d"
	write := func(uid string, share grant.Share) {
		require.NoError(t, store.Write(prepared.Record{UID: uid, Namespace: "default", Name: "c", Requests: map[string][]grant.Share{"gpu": {share}}}))
	}
	write(whole, grant.Share{UUID: gpuB, MemoryMiB: wholeGPU})
	write(device, grant.Share{UUID: migA, MemoryMiB: 9856, CorePercent: 100})
	create := func(isolation, uid string) (*api.Container, error) {
		ctr := withClaim(store, uid)
		_, err := f.runtime.create(newPod(isolation+uid[:1], wanting(isolation, nil)), ctr)
		return ctr, err
	}
	_, err := create("hardware", claimUID)
	require.ErrorContains(t, err, "the grant is a part of a GPU")
	_, err = create("driver", claimUID)
	require.ErrorContains(t, err, "only the limiter would hold", "with auto, ResourceClaims are the limiter's")
	require.Empty(t, f.dirs())
	mode = oci.MemoryBoth
	for isolation, uid := range map[string]string{"driver": claimUID, "hardware": whole} {
		_, err = create(isolation, uid)
		require.NoError(t, err)
	}
	mode = oci.MemoryLimiter // for which MIG devices need no driver
	_, err = create("hardware", device)
	require.NoError(t, err)
}
