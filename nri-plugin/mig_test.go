package nriplugin_test

import (
	"context"
	"os"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/granttest"
)

const (
	migA = "MIG-aaaaaaaa-0000-4000-8000-00000000000a"
	migB = "MIG-bbbbbbbb-0000-4000-8000-00000000000b"
)

// cutUp is a node with two MIG devices beside its GPUs.
func cutUp(c *nriplugin.Config) {
	gpus := c.GPUs()
	gpus[migA] = grant.GPU{UUID: migA, MemoryMiB: 9856, CorePercent: 100, Replicas: 1}
	gpus[migB] = grant.GPU{UUID: migB, MemoryMiB: 9856, CorePercent: 100, Replicas: 1}
}

// withMIG is a container as the kubelet makes it of the device plugin's answer.
func withMIG(annotations map[string]string) *api.Container {
	ctr := newContainer("main", "NVIDIA_VISIBLE_DEVICES=void")
	ctr.Annotations = annotations
	return ctr
}

var (
	mixed  = map[string]string{"gpuslice.io/mig-1g.10gb": migA + "::0"}
	single = map[string]string{gpuapi.AnnotationReplicas: migA + "::0"}
)

func reserved(f *fixture) []ledger.Claim {
	snapshot, err := f.ledger.Snapshot(context.Background())
	require.NoError(f.t, err)
	return snapshot.Claims()
}

// The kubelet's choice is the grant, whatever becomes of others' containers, and
// needs no signature.
func TestMIGIsGrantedByTheKubelet(t *testing.T) {
	signed := func(c *nriplugin.Config) { c.Keys = granttest.Keyring("first") }
	for _, test := range []struct {
		description string
		config      []func(*nriplugin.Config)
		annotations map[string]string
		pod         map[string]string
	}{
		{"a resource of its own, denied to the unscheduled", nil, mixed, nil},
		{"a resource of its own, shared with the unscheduled", []func(*nriplugin.Config){shareUnscheduled}, mixed, nil},
		{"as if it were a GPU", nil, single, nil},
		{"as if it were a GPU, shared", []func(*nriplugin.Config){shareUnscheduled}, single, nil},
		{"with keys", []func(*nriplugin.Config){signed}, mixed, nil},
		{"another container of the pod has a grant", nil, mixed, named("side", gpuA, 1000, 10)},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t, append(test.config, cutUp)...)
			spec, err := f.runtime.create(newPod("p", test.pod), withMIG(test.annotations))
			require.NoError(t, err)
			memory, _ := envOf(spec, "CUDA_DEVICE_MEMORY_LIMIT_0")
			require.Equal(t, "9856m", memory)
			claims := reserved(f)
			require.Len(t, claims, 1)
			require.Equal(t, grant.SourceMIG, claims[0].Source)
			require.Equal(t, []grant.Share{{UUID: migA, MemoryMiB: 9856, CorePercent: 100}}, claims[0].Shares)

			_, err = f.runtime.create(newPod("second", nil), withMIG(test.annotations))
			require.ErrorContains(t, err, migA, "it is one container's")
		})
	}
}

func TestMIGRefused(t *testing.T) {
	f := newFixture(t, cutUp)
	both := map[string]string{"gpuslice.io/mig-1g.10gb": migA + "::0", gpuapi.AnnotationReplicas: gpuA + "::0"}
	for _, test := range []struct {
		description      string
		annotations, pod map[string]string
		want             string
	}{
		{"malformed", map[string]string{"gpuslice.io/mig-1g.10gb": "all"}, nil, "must be MIG-"},
		{"taken away since", map[string]string{"gpuslice.io/mig-1g.10gb": "MIG-cccccccc-0000-4000-8000-000000000003::0"}, nil, "no such GPU"},
		{"a scheduler's grant too", mixed, hami(gpuA, 1000, 10), "a scheduler's grant too"},
		{"GPUs too", both, nil, "replicas of GPUs too"},
		{"copied from the pod by the runtime", mixed, mixed, "is on the pod"},
		{"copied from the pod, as if it were a GPU", single, single, "is on the pod"},
		{"on the pod of a container without any", nil, mixed, "is on the pod"},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, err := f.runtime.create(newPod("p", test.pod), withMIG(test.annotations))
			for _, want := range []string{test.want, "default/p", `"main"`, "gpuslice.io/"} {
				require.ErrorContains(t, err, want)
			}
			require.Empty(t, f.dirs())
		})
	}
}

// After a loss of the state directory, claims are restored from the shares in the runtime's
// record of a container.
func TestLostLedgerOfMIG(t *testing.T) {
	for _, test := range []struct {
		description string
		gone        bool
	}{
		{"the device is there", false},
		{"the device is gone", true},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t, cutUp, func(c *nriplugin.Config) {
				c.Populate = func(dir string, claim ledger.Claim) error { return oci.Populate(dir, claim, c.Settings()) }
			})
			ctr := withMIG(mixed)
			_, err := f.runtime.create(newPod("p", nil), ctr)
			require.NoError(t, err)
			f.stop()
			require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))
			if test.gone {
				delete(f.config.GPUs(), migA)
			}
			f.start()
			claims := reserved(f)
			require.Len(t, claims, 1)
			require.Equal(t, ctr.Id, claims[0].ContainerID)
			require.Equal(t, []grant.Share{{UUID: migA, MemoryMiB: 9856, CorePercent: 100}}, claims[0].Shares)

			_, err = f.runtime.create(newPod("next", nil), withMIG(mixed))
			require.ErrorContains(t, err, migA, "what is held is not given twice")
			_, err = f.runtime.create(newPod("other", nil), withMIG(map[string]string{"gpuslice.io/mig-1g.10gb": migB + "::0"}))
			require.NoError(t, err, "the node is not blocked")
		})
	}
}
