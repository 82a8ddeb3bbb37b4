package nriplugin_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/test/granttest"
)

func shareUnscheduled(c *nriplugin.Config) { c.Unscheduled = nriplugin.UnscheduledShare }

// withReplicas is a container as the kubelet makes it of the device plugin's answer.
func withReplicas(name, replicas string) *api.Container {
	ctr := newContainer(name, "NVIDIA_VISIBLE_DEVICES=void")
	ctr.Annotations = map[string]string{gpuapi.AnnotationReplicas: replicas}
	return ctr
}

// The replicas of a GPU fill it exactly, and nothing goes beside them.
func TestReplicasFillAGPU(t *testing.T) {
	f := newFixture(t, shareUnscheduled)
	pods, ctrs := make([]*api.PodSandbox, 10), make([]*api.Container, 10)
	for i := range ctrs {
		pods[i], ctrs[i] = newPod(fmt.Sprint("p", i), nil), withReplicas("main", fmt.Sprintf("%s::%d", gpuA, i))
		spec, err := f.runtime.create(pods[i], ctrs[i])
		require.NoError(t, err)
		memory, _ := envOf(spec, "CUDA_DEVICE_MEMORY_LIMIT_0")
		require.Equal(t, "8192m", memory)
		cores, _ := envOf(spec, "CUDA_DEVICE_SM_LIMIT_0")
		require.Equal(t, "10", cores)
		require.Equal(t, []string{"/dev/nvidiactl", "/dev/nvidia0"}, gpuNodes(spec))
	}
	snapshot, err := f.ledger.Snapshot(context.Background())
	require.NoError(t, err)
	memory, cores := int64(0), 0
	for _, c := range snapshot.Claims() {
		require.Equal(t, grant.SourceReplicas, c.Source)
		memory, cores = memory+c.Shares[0].MemoryMiB, cores+c.Shares[0].CorePercent
	}
	require.Equal(t, int64(81920), memory)
	require.Equal(t, 100, cores)

	_, err = f.runtime.create(newPod("eleventh", nil), withReplicas("main", gpuA+"::0"))
	require.ErrorContains(t, err, "default/eleventh", "a replica that is held already fits no more than any other claim")
	require.ErrorContains(t, err, gpuA)
	_, err = f.runtime.create(newPod("granted", hami(gpuA, 1, 0)), newContainer("main"))
	require.ErrorContains(t, err, gpuA, "nor does a scheduler's")

	f.runtime.stop(pods[3], ctrs[3])
	_, err = f.runtime.create(newPod("next", nil), withReplicas("main", gpuA+"::3"))
	require.NoError(t, err)
}

func TestReplicasAddUp(t *testing.T) {
	f := newFixture(t, shareUnscheduled)
	spec, err := f.runtime.create(newPod("p", nil), withReplicas("main", gpuB+"::1,"+gpuB+"::8,"+gpuA+"::0"))
	require.NoError(t, err)
	for name, want := range map[string]string{
		"CUDA_DEVICE_MEMORY_LIMIT_0": "16384m", "CUDA_DEVICE_SM_LIMIT_0": "20",
		"CUDA_DEVICE_MEMORY_LIMIT_1": "8192m", "CUDA_DEVICE_SM_LIMIT_1": "10",
	} {
		got, _ := envOf(spec, name)
		require.Equal(t, want, got, name)
	}
}

// Containers without a share that are not refused.
func TestReplicasThatGiveNothing(t *testing.T) {
	share := []func(*nriplugin.Config){shareUnscheduled}
	replica := withReplicas("main", gpuA+"::0").Annotations
	for _, test := range []struct {
		description    string
		config         []func(*nriplugin.Config)
		pod, container map[string]string
	}{
		{"denied unless asked for", nil, nil, replica},
		{"denied unless asked for, nonsense not read", nil, nil, map[string]string{gpuapi.AnnotationReplicas: "all"}},
		{"no replicas", share, nil, nil},
		{"a scheduler granted to another container", share, named("side", gpuA, 1000, 10), replica},
		{"a scheduler granted nothing", share, map[string]string{gpuapi.AnnotationHAMiAllocated: ";"}, replica},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t, test.config...)
			ctr := newContainer("main", "NVIDIA_VISIBLE_DEVICES=all")
			ctr.Annotations = test.container
			spec, err := f.runtime.create(newPod("p", test.pod), ctr)
			require.NoError(t, err)
			value, _ := envOf(spec, "NVIDIA_VISIBLE_DEVICES")
			require.Equal(t, "void", value)
			require.Empty(t, gpuNodes(spec))
			require.Empty(t, f.claims())
		})
	}
}

func TestReplicasRefused(t *testing.T) {
	f := newFixture(t, shareUnscheduled)
	for _, test := range []struct {
		description, replicas string
		pod                   map[string]string
		want                  string
	}{
		{"malformed", "all", nil, "must be <UUID>::<n>"},
		{"out of range", gpuA + "::10", nil, "10 replicas"},
		{"twice", gpuA + "::1," + gpuA + "::1", nil, "listed twice"},
		{"an unknown GPU", "GPU-cccccccc-0000-4000-8000-000000000003::0", nil, "no such GPU"},
		{"copied from the pod by the runtime", gpuA + "::0", map[string]string{gpuapi.AnnotationReplicas: gpuA + "::0"}, "is on the pod"},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, err := f.runtime.create(newPod("p", test.pod), withReplicas("main", test.replicas))
			for _, want := range []string{test.want, "default/p", `"main"`, gpuapi.AnnotationReplicas} {
				require.ErrorContains(t, err, want)
			}
			require.Empty(t, f.dirs())
		})
	}
	require.Equal(t, 1, f.runtime.proxy.connections())
}

// A scheduler's grant is all that a container gets, whatever the kubelet chose.
func TestReplicasAreNotAddedToAGrant(t *testing.T) {
	f := newFixture(t, shareUnscheduled)
	spec, err := f.runtime.create(newPod("p", hami(gpuB, 500, 5)), withReplicas("main", gpuA+"::0"))
	require.NoError(t, err)
	require.Equal(t, []string{"/dev/nvidiactl", "/dev/nvidia1"}, gpuNodes(spec))
	value, _ := envOf(spec, "CUDA_DEVICE_MEMORY_LIMIT_0")
	require.Equal(t, "500m", value)
}

// Keys are for grants; the kubelet's replicas come from the node itself.
func TestReplicasNeedNoSignature(t *testing.T) {
	f := newFixture(t, shareUnscheduled, func(c *nriplugin.Config) { c.Keys = granttest.Keyring("first") })
	_, err := f.runtime.create(newPod("p", nil), withReplicas("main", gpuA+"::0"))
	require.NoError(t, err)
	_, err = f.runtime.create(newPod("forged", named("main", gpuA, 1000, 10)), withReplicas("main", gpuA+"::1"))
	require.ErrorContains(t, err, "signed grants only", "a forged grant is not passed over for the share")
}

// Only gpuslice writes this annotation. A runtime that copies annotations of pods to containers
// would let pod authors write it.
func TestContainerWithARecordOfSharesIsRefused(t *testing.T) {
	f := newFixture(t)
	ctr := newContainer("main")
	ctr.Annotations = map[string]string{gpuapi.AnnotationShares: `[{"uuid":"` + gpuA + `","memoryMiB":1,"cores":1}]`}
	_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), ctr)
	require.ErrorContains(t, err, "only gpuslice writes")
	require.Empty(t, f.dirs())
}
