package nriplugin_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/granttest"
)

const (
	claimUID  = "11111111-0000-4000-8000-00000000000a"
	victimUID = "22222222-0000-4000-8000-00000000000b"
)

// withClaims is a fixture with two prepared ResourceClaims.
func withClaims(t testing.TB, change ...func(*nriplugin.Config)) (*fixture, *prepared.Store) {
	store, err := prepared.Open(t.TempDir())
	require.NoError(t, err)
	for uid, memory := range map[string]int64{claimUID: 1000, victimUID: 2000} {
		require.NoError(t, store.Write(prepared.Record{UID: uid, Namespace: "default", Name: "c", Requests: map[string][]grant.Share{
			"gpu": {{UUID: gpuA, MemoryMiB: memory, CorePercent: 30}},
		}}))
	}
	return newFixture(t, append(change, func(c *nriplugin.Config) {
		c.Prepared = store
		c.Populate = func(dir string, claim ledger.Claim) error { return oci.Populate(dir, claim, c.Settings()) }
	})...), store
}

func deviceOf(uid string) prepared.Device { return prepared.Device{UID: uid, Request: "gpu"} }

// addName and addMount make a container as the runtime reports it after it applied the CDI device of a ResourceClaim.
func addName(ctr *api.Container, uid string) *api.Container {
	ctr.CDIDevices = append(ctr.CDIDevices, &api.CDIDevice{Name: deviceOf(uid).QualifiedName()})
	return ctr
}

func addMount(ctr *api.Container, store *prepared.Store, uid string) *api.Container {
	ctr.Mounts = append(ctr.Mounts, &api.Mount{Source: store.Path(uid), Destination: prepared.ContainerPath(deviceOf(uid).String()), Type: "bind", Options: []string{"ro"}})
	return ctr
}

func withClaim(store *prepared.Store, uid string) *api.Container {
	return addMount(addName(newContainer("main"), uid), store, uid)
}

var claimShare = grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 30}

func TestResourceClaim(t *testing.T) {
	for description, change := range map[string]func(*nriplugin.Config){
		"denied to the unscheduled":   func(*nriplugin.Config) {},
		"shared with the unscheduled": shareUnscheduled,
		"with keys":                   func(c *nriplugin.Config) { c.Keys = granttest.Keyring("first") },
	} {
		t.Run(description, func(t *testing.T) {
			f, store := withClaims(t, change)
			ctr := withClaim(store, claimUID)
			addName(ctr, claimUID) // as after a restart of the kubelet
			spec, err := f.runtime.create(newPod("p", nil), ctr)
			require.NoError(t, err)
			memory, _ := envOf(spec, "CUDA_DEVICE_MEMORY_LIMIT_0")
			require.Equal(t, "1000m", memory)
			require.NotEmpty(t, gpuNodes(spec))
			require.NotEmpty(t, sourceOf(spec, gpuapi.ContainerDir))
			require.NotEmpty(t, sourceOf(spec, gpuapi.ContainerPreloadPath))
			claims := reserved(f)
			require.Len(t, claims, 1)
			require.Equal(t, grant.SourceResourceClaim, claims[0].Source)
			require.Equal(t, []string{claimUID + ".gpu"}, claims[0].ResourceClaims)
			require.Equal(t, []grant.Share{claimShare}, claims[0].Shares)

			// One container at a time, of this pod or of another one.
			sidecar := withClaim(store, claimUID)
			sidecar.Name = "sidecar"
			_, err = f.runtime.create(newPod("p", nil), sidecar)
			require.ErrorContains(t, err, "in use by another container")
			_, err = f.runtime.create(newPod("other", nil), withClaim(store, claimUID))
			require.ErrorContains(t, err, "in use by another container")
			require.Len(t, reserved(f), 1)
			next := withClaim(store, claimUID)
			_, err = f.runtime.create(newPod("p", nil), next)
			require.NoError(t, err, "the next attempt of the container, before the end of the first is reported")
			f.runtime.stop(newPod("p", nil), next)
			_, err = f.runtime.create(newPod("other", nil), withClaim(store, claimUID))
			require.NoError(t, err)
		})
	}
}

// Nothing but the kubelet's CDI device together with its mount gives a GPU.
func TestNoGPUWithoutThePreparedClaim(t *testing.T) {
	f, store := withClaims(t)
	for _, test := range []struct {
		description string
		ctr         *api.Container
		pod         map[string]string
		want        string
	}{
		{"only the record, by hostPath", addMount(newContainer("main"), store, victimUID), nil, "remove the volume"},
		{"only the CDI device", addName(newContainer("main"), claimUID), nil, "not mounted"},
		{"another claim's record beside the own", addMount(withClaim(store, claimUID), store, victimUID), nil, "remove the volume"},
		{"another claim's record for the own device", addMount(addName(newContainer("main"), claimUID), store, victimUID), nil, "remove the volume"},
		{"a claim that is not prepared", withClaim(store, "33333333-0000-4000-8000-00000000000c"), nil, "not prepared on this node"},
		{"a scheduler's grant too", withClaim(store, claimUID), named("main", gpuA, 500, 10), "a scheduler's grant too"},
		{"HAMi's grant too", withClaim(store, claimUID), hami(gpuB, 500, 10), "a scheduler's grant too"},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, err := f.runtime.create(newPod("p", test.pod), test.ctr)
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "default/p")
			require.Empty(t, f.dirs())
		})
	}
	for description, annotations := range map[string]map[string]string{
		"replicas": {gpuapi.AnnotationReplicas: gpuA + "::0"},
	} {
		ctr := withClaim(store, claimUID)
		ctr.Annotations = annotations
		_, err := f.runtime.create(newPod("p", nil), ctr)
		require.ErrorContains(t, err, "too", description)
		require.Empty(t, f.dirs(), description)
	}
	pod := newPod("p", nil)
	pod.Namespace = "elsewhere"
	_, err := f.runtime.create(pod, withClaim(store, claimUID))
	require.ErrorContains(t, err, "another namespace")

	require.NoError(t, store.Remove(claimUID))
	_, err = f.runtime.create(newPod("p", nil), withClaim(store, claimUID))
	require.ErrorContains(t, err, "no longer")
	require.NoError(t, os.WriteFile(store.Path(claimUID), []byte(`{"version":1}`), 0o600))
	_, err = f.runtime.create(newPod("p", nil), withClaim(store, claimUID))
	require.ErrorContains(t, err, filepath.Base(store.Path(claimUID)))
	require.Empty(t, f.dirs())
}

// A ResourceClaim gives nothing to what can open every GPU without it.
func TestResourceClaimOfRootOfTheNode(t *testing.T) {
	f, store := withClaims(t)
	namespaces := func(types ...string) (list []*api.LinuxNamespace) {
		for _, n := range types {
			list = append(list, &api.LinuxNamespace{Type: n})
		}
		return list
	}
	linux := func(ctr *api.Container) *api.LinuxContainer {
		if ctr.Linux == nil {
			ctr.Linux = &api.LinuxContainer{}
		}
		return ctr.Linux
	}
	for description, test := range map[string]struct {
		change func(*api.PodSandbox, *api.Container)
		want   string
	}{
		"privileged": {func(_ *api.PodSandbox, ctr *api.Container) {
			linux(ctr).Resources = &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}
		}, "privileged"},
		"a pod with hostPID": {func(pod *api.PodSandbox, ctr *api.Container) {
			pod.Linux = &api.LinuxPodSandbox{Namespaces: namespaces("ipc", "mount")}
			linux(ctr).Namespaces = namespaces("ipc", "mount", "pid")
		}, "host's PID namespace"},
		"a container with hostPID": {func(_ *api.PodSandbox, ctr *api.Container) { linux(ctr).Namespaces = namespaces("mount") }, "host's PID namespace"},
		"namespaces of its own": {func(pod *api.PodSandbox, ctr *api.Container) {
			pod.Linux = &api.LinuxPodSandbox{Namespaces: namespaces("ipc", "pid")}
			linux(ctr).Namespaces = namespaces("mount", "pid")
		}, ""},
	} {
		t.Run(description, func(t *testing.T) {
			pod, ctr := newPod("p", nil), withClaim(store, claimUID)
			test.change(pod, ctr)
			_, err := f.runtime.create(pod, ctr)
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				require.ErrorContains(t, err, "default/p")
				return
			}
			require.NoError(t, err)
			f.runtime.stop(pod, ctr)
		})
	}
}

// What no GPU has room for is refused, whatever the API server has.
func TestResourceClaimThatDoesNotFit(t *testing.T) {
	f, store := withClaims(t)
	_, err := f.runtime.create(newPod("old", named("main", gpuA, 81000, 0)), newContainer("main"))
	require.NoError(t, err)
	_, err = f.runtime.create(newPod("p", nil), withClaim(store, claimUID))
	require.ErrorContains(t, err, "memory")
	require.Len(t, reserved(f), 1)
}

// Without a DRA driver a ResourceClaim gives nothing, and its container does not run without its GPU unnoticed.
func TestResourceClaimWithoutADriver(t *testing.T) {
	f := newFixture(t)
	_, err := f.runtime.create(newPod("p", nil), addName(newContainer("main"), claimUID))
	require.ErrorContains(t, err, "--resource-api")
	require.Empty(t, f.dirs())
}

// After a loss of the ledger the claim is restored, and its ResourceClaim is not given twice, also if its record is gone
// and the agent serves none.
func TestLostLedgerOfResourceClaim(t *testing.T) {
	for description, change := range map[string]func(*fixture, *prepared.Store){
		"the record is there":    func(*fixture, *prepared.Store) {},
		"the record is gone":     func(_ *fixture, s *prepared.Store) { _ = s.Remove(claimUID) },
		"the driver is switched": func(f *fixture, _ *prepared.Store) { f.config.Prepared = nil },
	} {
		t.Run(description, func(t *testing.T) {
			f, store := withClaims(t)
			ctr := withClaim(store, claimUID)
			_, err := f.runtime.create(newPod("p", nil), ctr)
			require.NoError(t, err)
			f.stop()
			require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))
			change(f, store)
			f.start()
			claims := reserved(f)
			require.Len(t, claims, 1)
			require.Equal(t, []grant.Share{claimShare}, claims[0].Shares)
			require.Equal(t, []string{claimUID + ".gpu"}, claims[0].ResourceClaims)
			used, err := f.ledger.InUse(context.Background(), []string{claimUID + ".gpu"})
			require.NoError(t, err)
			require.True(t, used)
			_, err = f.runtime.create(newPod("second", nil), withClaim(store, claimUID))
			require.Error(t, err)
			require.Len(t, reserved(f), 1)
		})
	}
}
