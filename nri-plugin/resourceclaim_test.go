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
	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
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

			require.Equal(t, []string{ctr.Id}, membersOf(claims[0]))
		})
	}
}

func membersOf(c ledger.Claim) (ids []string) {
	for _, m := range c.Members {
		ids = append(ids, m.ContainerID)
	}
	return ids
}

// Containers of a pod, and of other pods, that have the same ResourceClaim have one share in common: one limits file, one
// usage file and one claim, from the first container to the last.
func TestResourceClaimInCommon(t *testing.T) {
	f, store := withClaims(t)
	id := ledger.CommonID([]string{claimUID + ".gpu"})
	pod, other := newPod("p", nil), newPod("other", nil)
	create := func(pod *api.PodSandbox, name string) *api.Container {
		ctr := withClaim(store, claimUID)
		ctr.Name = name
		spec, err := f.runtime.create(pod, ctr)
		require.NoError(t, err)
		require.Equal(t, limiter.FilesDir(f.ledger.Dir(id)), sourceOf(spec, gpuapi.ContainerDir))
		require.Equal(t, limiter.UsagePath(f.ledger.Dir(id)), sourceOf(spec, gpuapi.ContainerUsagePath))
		turns := filepath.Join(gpuapi.ContainerTurnsDir, "0", limiter.TurnIDOf(id, "").String())
		require.Equal(t, limiter.TurnPath(filepath.Dir(filepath.Dir(f.ledger.Dir(id))), gpuA, limiter.TurnIDOf(id, "")), sourceOf(spec, turns))
		return ctr
	}
	has := func(ctrs ...*api.Container) {
		t.Helper()
		claims := reserved(f)
		require.Len(t, claims, 1)
		require.Equal(t, id, claims[0].ContainerID)
		require.Equal(t, []grant.Share{claimShare}, claims[0].Shares)
		want := []string{}
		for _, c := range ctrs {
			want = append(want, c.Id)
		}
		require.Equal(t, want, membersOf(claims[0]))
	}
	main := create(pod, "main")
	usage, err := os.Stat(limiter.UsagePath(f.ledger.Dir(id)))
	require.NoError(t, err)
	sidecar, second := create(pod, "sidecar"), create(other, "main")
	has(main, sidecar, second)
	f.runtime.remove(pod, main)
	has(sidecar, second)
	main = create(pod, "main")
	f.runtime.remove(pod, sidecar)
	f.runtime.remove(other, second)
	has(main)
	next := create(pod, "main")
	has(next)
	f.runtime.remove(pod, main)
	has(next)
	now, err := os.Stat(limiter.UsagePath(f.ledger.Dir(id)))
	require.NoError(t, err)
	require.True(t, os.SameFile(usage, now))

	// Unprepared: what runs keeps its share, and nothing is added.
	record, err := store.Read(claimUID)
	require.NoError(t, err)
	require.NoError(t, store.Remove(claimUID))
	_, err = f.runtime.create(other, withClaim(store, claimUID))
	require.ErrorContains(t, err, "no longer")
	has(next)
	require.NoError(t, store.Write(record))
	second = create(other, "main")
	has(next, second)
	f.runtime.stop(pod, next)
	f.runtime.stop(other, second)
	require.Empty(t, reserved(f))
	require.Equal(t, []string{id}, f.dirs())
	f.runtime.remove(pod, next)
	f.runtime.remove(other, second)
	require.Empty(t, f.dirs())
}

// The same requests: a container with more or fewer of them would have another limit in the same GPU.
func TestResourceClaimsThatOverlap(t *testing.T) {
	f, store := withClaims(t)
	_, err := f.runtime.create(newPod("p", nil), withClaim(store, claimUID))
	require.NoError(t, err)
	_, err = f.runtime.create(newPod("other", nil), addMount(addName(withClaim(store, victimUID), claimUID), store, claimUID))
	require.ErrorContains(t, err, "in use by a container with other requests")
	require.Len(t, reserved(f), 1)
	both := addMount(addName(withClaim(store, victimUID), claimUID), store, claimUID)
	f.runtime.stop(newPod("p", nil), running(f))
	_, err = f.runtime.create(newPod("other", nil), both)
	require.NoError(t, err)
	third := addMount(addName(withClaim(store, claimUID), victimUID), store, victimUID)
	third.Name = "third"
	_, err = f.runtime.create(newPod("other", nil), third)
	require.NoError(t, err, "in another order")
	require.Len(t, reserved(f), 1)
	require.Equal(t, []grant.Share{{UUID: gpuA, MemoryMiB: 3000, CorePercent: 60}}, reserved(f)[0].Shares)
}

func running(f *fixture) *api.Container {
	for _, ctr := range f.runtime.running {
		return ctr
	}
	return nil
}

// The agent is away while containers of a ResourceClaim end and its ledger is lost.
func TestAgentReturnsToACommonClaim(t *testing.T) {
	f, store := withClaims(t)
	id := ledger.CommonID([]string{claimUID + ".gpu"})
	pod := newPod("p", nil)
	var ctrs []*api.Container
	for _, name := range []string{"a", "b", "c"} {
		ctr := withClaim(store, claimUID)
		ctr.Name = name
		_, err := f.runtime.create(pod, ctr)
		require.NoError(t, err)
		ctrs = append(ctrs, ctr)
	}
	again := func(lose bool, gone ...*api.Container) []string {
		f.stop()
		for _, ctr := range gone {
			delete(f.runtime.running, ctr.Id)
		}
		if lose {
			require.NoError(t, os.RemoveAll(f.ledger.Dir(id)))
		}
		f.start()
		claims := reserved(f)
		if len(claims) == 0 {
			return nil
		}
		require.Len(t, claims, 1)
		require.Equal(t, []grant.Share{claimShare}, claims[0].Shares)
		return membersOf(claims[0])
	}
	require.Equal(t, []string{ctrs[1].Id, ctrs[2].Id}, again(false, ctrs[0]))
	fourth := withClaim(store, claimUID)
	fourth.Name = "d"
	_, err := f.runtime.create(pod, fourth)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{ctrs[1].Id, ctrs[2].Id, fourth.Id}, again(true))

	// What runs has an account that is not in the new files: nothing is added to it.
	late := withClaim(store, claimUID)
	late.Name = "late"
	_, err = f.runtime.create(pod, late)
	require.ErrorContains(t, err, "restored")
	require.NotContains(t, membersOf(reserved(f)[0]), late.Id)
	members := membersOf(reserved(f)[0])
	late.PodSandboxId = pod.Id
	_, _, err = f.plugin.CreateContainer(t.Context(), pod, late)
	require.ErrorContains(t, err, "restored")
	require.Equal(t, members, membersOf(reserved(f)[0]), "without the runtime's RemoveContainer")
	require.Equal(t, []string{fourth.Id}, again(false, ctrs[1], ctrs[2]))
	require.Empty(t, again(false, fourth))
	require.Empty(t, f.dirs())
	late = withClaim(store, claimUID)
	_, err = f.runtime.create(pod, late)
	require.NoError(t, err)
}

// The control groups are read once for all containers that are not listed, when the first of them is asked for.
func TestContainersWithProcesses(t *testing.T) {
	proc := t.TempDir()
	add := func(pid, cgroups string) {
		require.NoError(t, os.Mkdir(filepath.Join(proc, pid), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "cgroup"), []byte(cgroups), 0o600))
	}
	has := nriplugin.HaveProcesses(procfs.FS(proc))
	add("7", "0::/kubepods.slice/cri-containerd-aa.scope\n")
	add("8", "3:cpu:/kubepods/pod-1/bb\n0::/k8s.io:cri:cc/inner\n")
	require.NoError(t, os.Mkdir(filepath.Join(proc, "9"), 0o700)) // it has ended
	for id, want := range map[string]bool{"aa": true, "bb": true, "cc": true, "dd": false, "scope": false} {
		require.Equal(t, want, has(id), id)
	}
	add("10", "0::/dd\n")
	require.False(t, has("dd"), "they are not read again")
	require.True(t, nriplugin.HaveProcesses(procfs.FS(proc))("dd"))
	require.True(t, nriplugin.HaveProcesses(procfs.FS(filepath.Join(proc, "none")))("x"), "it is not known")
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
			require.NoError(t, os.RemoveAll(f.ledger.Dir(ledger.CommonID([]string{claimUID + ".gpu"}))))
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
