package nriplugin_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/ledger"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nri-plugin/bounds"
)

// text returns a text of that many bytes.
func text(bytes int) string { return strings.Repeat("x", bytes) }

// An answer with an edit for each of these variables would exceed one message, and end the
// connection.
func TestManyLimitVariablesDoNotDisconnectThePlugin(t *testing.T) {
	for _, prefix := range []string{"CUDA_DEVICE_MEMORY_LIMIT_", "CUDA_DEVICE_SM_LIMIT_"} {
		f := newFixture(t)
		for _, count := range []int{1, 1000, 10_000} {
			var env []string
			for i := range count {
				env = append(env, fmt.Sprintf("%s%0*d=1", prefix, 250-len(prefix), 16+i))
			}
			_, err := f.runtime.create(newPod("p", hami(gpuA, 1000, 10)), newContainer("main", env...))
			require.ErrorContains(t, err, "default/p")
			require.ErrorContains(t, err, `"main"`)
			if count == 1 {
				require.ErrorContains(t, err, prefix)
			}
			require.Less(t, len(err.Error()), bounds.ErrorText+100)
		}
		_, err := f.runtime.create(newPod("q", hami(gpuA, 1000, 10)), newContainer("main"))
		require.NoError(t, err)
		require.Equal(t, 1, f.runtime.proxy.connections())
		require.Len(t, f.claims(), 1)
	}
}

func TestContainersAndPodsAboveABoundAreRefused(t *testing.T) {
	large := func(bytes int) *api.Container { return newContainer("main", "LARGE="+text(bytes)) }
	annotated := func(bytes int) *api.PodSandbox {
		return newPod("p", map[string]string{"example.com/note": text(bytes)})
	}
	for _, test := range []struct {
		description string
		pod         *api.PodSandbox
		container   *api.Container
		says        string
	}{
		{"a container just below its bound", newPod("p", nil), large(bounds.Container - 200), ""},
		{"a container above its bound", newPod("p", nil), large(bounds.Container), "384 KiB"},
		{"with a grant", newPod("p", hami(gpuA, 1000, 10)), large(bounds.Container), "384 KiB"},
		{"with a grant, and too large because of gpuslice's additions", newPod("p", hami(gpuA, 1000, 10)), large(bounds.Container - 500), "384 KiB"},
		{"by its arguments", newPod("p", nil), &api.Container{Id: "args", Name: "main", Args: []string{text(bounds.Container)}}, "384 KiB"},
		{"a pod just below its bound", annotated(bounds.Pod - 200), large(0), ""},
		{"a pod above its bound", annotated(bounds.Pod), large(0), "64 KiB of"},
		{"by its labels", &api.PodSandbox{Namespace: "default", Name: "p", Labels: map[string]string{"a": text(bounds.Pod)}}, large(0), "64 KiB of"},
		{"in an exempt namespace", &api.PodSandbox{Namespace: "kube-system", Name: "p"}, large(bounds.Container), "384 KiB"},
	} {
		t.Run(test.description, func(t *testing.T) {
			s := &seen{handled: map[string]int{}}
			f := newFixture(t, func(c *nriplugin.Config) { c.Observer, c.ExemptNamespaces = s, []string{"kube-system"} })
			_, err := f.runtime.create(test.pod, test.container)
			if test.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, strings.TrimSuffix(test.says, " of"))
			require.ErrorContains(t, err, test.pod.Namespace+"/p")
			assert.Equal(t, []string{"too_large"}, s.refusals)
			assert.Empty(t, f.dirs(), "nothing is reserved for it")
		})
	}
}

// The runtime does not list a container that has ended, so it does not count.
func TestPodsContainersAreBoundedTogether(t *testing.T) {
	f := newFixture(t)
	pod, size := newPod("p", nil), bounds.Container-1000
	first, second := newContainer("a", "LARGE="+text(size)), newContainer("b", "LARGE="+text(size))
	for _, c := range []*api.Container{first, second} {
		_, err := f.runtime.create(pod, c)
		require.NoError(t, err)
	}
	create := func(pod *api.PodSandbox) error {
		_, err := f.runtime.create(pod, newContainer("c", "LARGE="+text(size)))
		return err
	}
	require.ErrorContains(t, create(pod), "768 KiB")
	require.NoError(t, create(newPod("other", nil)))

	f.stop() // containers of Synchronize count too
	f.start()
	require.ErrorContains(t, create(pod), "768 KiB")

	f.runtime.stop(pod, first)
	require.NoError(t, create(pod))
	require.ErrorContains(t, create(pod), "768 KiB")
	f.runtime.remove(pod, second)
	require.NoError(t, create(pod))
}

// The runtime lists pods without containers too.
func TestPodWithALargeRecordIsRefusedBeforeItsContainers(t *testing.T) {
	f := newFixture(t)
	run := func(bytes int) error {
		pod := newPod("p", map[string]string{"example.com/note": text(bytes)})
		return f.runtime.RunPodSandbox(context.Background(), &api.RunPodSandboxRequest{Pod: pod})
	}
	require.NoError(t, run(bounds.Pod-200))
	require.ErrorContains(t, run(bounds.Pod), "default/p has 65 KiB of labels and annotations")

	old := connect(t, newRuntime(t, "v2.2.5"))
	require.NoError(t, old.runtime.RunPodSandbox(context.Background(), &api.RunPodSandboxRequest{Pod: newPod("p", map[string]string{"a": text(bounds.Pod)})}),
		"this version can't undo a pod that is refused")
}

func TestRuntimesThatUndoPods(t *testing.T) {
	for version, want := range map[string]bool{
		"v2.4.2": true, "2.4.0": true, "v2.4.0-beta.1": true, "v3.0.0": true, "v2.3.3": true, "v2.3.10": true, "v2.2.6": true,
		"v2.3.2": false, "v2.2.5": false, "v2.1.9": false, "v1.7.34": false, "": false, "unknown": false,
	} {
		assert.Equal(t, want, nriplugin.CleansUpPods("containerd", version), version)
	}
	assert.False(t, nriplugin.CleansUpPods("cri-o", "v2.4.2"))
}

// NRI's own code synchronises a plugin at the first attempt, on nodes at the bounds.
func TestBoundsKeepANodeSynchronisable(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newRuntime(t, "v2.4.2")
		add := func(name string, record, container, count int) {
			pod := newPod(name, map[string]string{"example.com/note": text(record)})
			r.pods[pod.Id] = pod
			left := bounds.PodTotal - proto.Size(pod)
			for range count {
				c := newContainer("c", "LARGE="+text(container))
				c.PodSandboxId = pod.Id
				if left -= proto.Size(c); left < 0 {
					break
				}
				r.running[c.Id] = c
			}
		}
		for i := range 3 { // the node's own
			add(fmt.Sprint("system", i), 2000, 8000, 1)
		}
		for i := range 1 + rnd.IntN(60) {
			largest := bounds.Container - 200
			add(fmt.Sprint("tenant", i), rnd.IntN(2)*(bounds.Pod-200), []int{largest, rnd.IntN(largest), rnd.IntN(20_000), 500}[rnd.IntN(4)], rnd.IntN(120))
		}
		connect(t, r).stop()
		require.Equal(t, 1, r.proxy.connections(), "seed %d: %d pods, %d containers", seed, len(r.pods), len(r.running))
	}
}

// For any request, the answer and the error are within their bounds.
func FuzzAnswerIsBounded(f *testing.F) {
	for _, request := range []*api.CreateContainerRequest{
		{Pod: newPod("p", hami(gpuA, 1000, 10)), Container: newContainer("main", "NVIDIA_VISIBLE_DEVICES=all", "CUDA_DEVICE_MEMORY_LIMIT_3=1", "CUDA_DEVICE_SM_LIMIT_x=1")},
		{Pod: newPod("p", nil), Container: newContainer("main", "CUDA_VERSION=1", "NVIDIA_VISIBLE_DEVICES="+gpuA)},
		{Pod: newPod("p", hami(text(1000), 1000, 10)), Container: newContainer("main")},
		{Pod: newPod("p", hami(gpuB, 1000, 10)), Container: &api.Container{Id: "c", Name: "main", Mounts: []*api.Mount{{Destination: "/.gpuslice/" + text(100)}}}},
		{Pod: newPod("p", nil), Container: &api.Container{Id: "c", Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/nvidia" + text(9000)}}}}},
	} {
		data, err := proto.Marshal(request)
		require.NoError(f, err)
		f.Add(data, 1)
		f.Add(data, 3000)
	}
	plugin, err := nriplugin.New(newConfig(f))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte, times int) {
		request := &api.CreateContainerRequest{}
		if proto.Unmarshal(data, request) != nil || request.GetContainer() == nil {
			return
		}
		ctr := request.Container
		ctr.Id = "c" // the runtime chooses IDs
		// Repeated, each time a bit longer, so that no two are equal.
		env, mounts, size := ctr.Env, ctr.Mounts, proto.Size(ctr)
		for i := range min(max(times, 0), 5000) {
			for _, e := range env {
				name, value, is := strings.Cut(e, "=")
				if is {
					ctr.Env = append(ctr.Env, fmt.Sprintf("%s%d=%s", name, i, value))
				}
			}
			for _, m := range mounts {
				ctr.Mounts = append(ctr.Mounts, &api.Mount{Destination: m.GetDestination() + fmt.Sprint("/", i), Source: m.GetSource()})
			}
			if size += proto.Size(&api.Container{Env: env, Mounts: mounts}); size > 2*bounds.Container {
				break
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		adjust, _, err := plugin.CreateContainer(ctx, request.GetPod(), ctr)
		if err != nil {
			require.LessOrEqual(t, len(err.Error()), bounds.ErrorText)
			return
		}
		require.LessOrEqual(t, proto.Size(adjust), bounds.Answer)
		require.LessOrEqual(t, proto.Size(ctr), bounds.Container)
		require.NoError(t, plugin.RemoveContainer(ctx, request.GetPod(), ctr))
	})
}

// answerRoom is the longest message of ttrpc: a longer answer closes the connection.
const answerRoom = 4 << 20

// A request of the runtime, as a pod's author can shape it and of any size: the plugin refuses
// it, or its answer fits a message and gives no GPU without a grant.
func FuzzCreateContainer(f *testing.F) {
	message := func(pod *api.PodSandbox, ctr *api.Container) []byte {
		data, err := proto.Marshal(&api.CreateContainerRequest{Pod: pod, Container: ctr})
		require.NoError(f, err)
		return data
	}
	ctr := newContainer("main", "NVIDIA_VISIBLE_DEVICES=all", "CUDA_DEVICE_MEMORY_LIMIT_0=1m", "LD_PRELOAD=x")
	ctr.Mounts = []*api.Mount{{Destination: "/.gpuslice", Source: "/x", Type: "bind", Options: []string{"rbind"}}}
	ctr.Linux = &api.LinuxContainer{
		Devices:   []*api.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 195, Minor: 1}},
		Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: api.Int64(int64(195)), Access: "rw"}}},
	}
	ctr.CDIDevices = []*api.CDIDevice{{Name: "nvidia.com/gpu=all"}}
	ctr.Annotations = map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=0", "gpuslice.io/replicas": gpuA + "::0"}
	f.Add(message(newPod("p", nil), ctr), uint16(0), uint16(0))
	f.Add(message(newPod("p", named("main", gpuA, 1000, 10)), newContainer("main")), uint16(10000), uint16(250))
	f.Add(message(newPod("p", hami(gpuA, 1000, 10)), newContainer("main")), uint16(3), uint16(60000))
	f.Add([]byte{}, uint16(0), uint16(0))

	config := newConfig(f)
	config.Populate = func(string, ledger.Claim) error { return nil }
	plugin, err := nriplugin.New(config)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte, variables, length uint16) {
		var request api.CreateContainerRequest
		if proto.Unmarshal(data, &request) != nil {
			return
		}
		if request.Pod == nil {
			request.Pod = &api.PodSandbox{}
		}
		if request.Container == nil {
			request.Container = &api.Container{}
		}
		if int(variables)*int(length) <= 3<<20 { // with what else is in it this fits into a request
			text := strings.Repeat("x", int(length))
			for i := range variables {
				request.Container.Env = append(request.Container.Env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%s%d=1", text, i))
			}
		}
		adjust, _, err := plugin.CreateContainer(context.Background(), request.Pod, request.Container)
		if err != nil {
			require.Less(t, len(err.Error()), answerRoom)
			return
		}
		require.Less(t, proto.Size(&api.CreateContainerResponse{Adjust: adjust}), answerRoom)
		claimed, err := config.Ledger.Snapshot(context.Background())
		require.NoError(t, err)
		if len(claimed.Claims()) == 0 {
			require.Empty(t, adjust.GetLinux().GetDevices())
			require.Empty(t, adjust.GetCDIDevices())
		}
		require.NoError(t, plugin.RemoveContainer(context.Background(), request.Pod, request.Container))
	})
}
