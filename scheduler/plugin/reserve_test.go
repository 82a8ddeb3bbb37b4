package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
	"github.com/gpuslice/gpuslice/test/granttest"
)

const binding = `{"apiVersion":"gpuslice.io/v1","kind":"GPUSliceArgs","annotate":"Binding"}`

var patching = strings.Replace(binding, "Binding", "Patch", 1)

func TestReserve(t *testing.T) {
	w := newWorld(t, "", gpuNode("n1", 1, 1))
	first, second := gpuPod("a", 60000, 0), gpuPod("b", 60000, 0)
	require.True(t, w.preFilter(t, first).IsSuccess())
	late := newState()
	_, status := w.PreFilter(t.Context(), late, second, nil) // both are evaluated before one reserves
	require.True(t, status.IsSuccess())
	require.True(t, w.Reserve(t.Context(), w.state, first, "n1").IsSuccess())

	status = w.Reserve(t.Context(), late, second, "n1")
	require.Equal(t, fwk.Error, status.Code(), "tried again without an event")
	require.Contains(t, status.Message(), "n1: 1 GPU: 1 with less than 60000 MiB free (most: 20000 MiB)")
	w.Unreserve(t.Context(), late, second, "n1") // kube-scheduler calls it then
	require.Equal(t, "n1", w.engine.AllocatedNode(string(first.UID)))

	w.Unreserve(t.Context(), w.state, first, "n1")
	w.Unreserve(t.Context(), w.state, first, "n1")
	require.Empty(t, w.engine.AllocatedNode(string(first.UID)))
	require.True(t, w.Reserve(t.Context(), late, second, "n1").IsSuccess())

	require.True(t, w.Reserve(t.Context(), newState(), plainPod("x"), "n1").IsSuccess())
	w.Unreserve(t.Context(), newState(), plainPod("x"), "n1")
}

// reserved is a world with a pod that has GPUs on n1.
func reserved(t *testing.T, args string, pod *v1.Pod) *world {
	w := newWorld(t, args, gpuNode("n1", 1, 1), pod)
	require.True(t, w.preFilter(t, pod).IsSuccess())
	require.True(t, w.Reserve(t.Context(), w.state, pod, "n1").IsSuccess())
	w.client.ClearActions()
	return w
}

func written(t *testing.T, w *world, verb string) (annotations map[string]any) {
	t.Helper()
	writes := slices.DeleteFunc(w.client.Actions(), func(a clienttesting.Action) bool {
		return a.GetVerb() == "list" || a.GetVerb() == "watch" // informers may still start
	})
	require.Len(t, writes, 1, "one write")
	action := writes[0]
	require.Equal(t, verb, action.GetVerb())
	switch action := action.(type) {
	case clienttesting.CreateAction:
		require.Equal(t, "binding", action.GetSubresource())
		annotations = map[string]any{}
		for k, v := range action.GetObject().(*v1.Binding).Annotations {
			annotations[k] = v
		}
	case clienttesting.PatchAction:
		var patch struct {
			Metadata struct{ Annotations map[string]any }
		}
		require.NoError(t, json.Unmarshal(action.GetPatch(), &patch))
		annotations = patch.Metadata.Annotations
	}
	return annotations
}

func TestBindingHasGrant(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte(granttest.PrivateKeys("key")), 0o400))
	pod := gpuPod("p", 1000, 10)
	w := reserved(t, strings.Replace(binding, `}`, `,"grantPrivateKeyFile":"`+keys+`"}`, 1), pod)
	_, status := w.PreBindPreFlight(t.Context(), w.state, pod, "n1")
	require.True(t, status.IsSkip(), "there is nothing to write before")
	require.True(t, w.Bind(t.Context(), w.state, pod, "n1").IsSuccess())

	now := pod.DeepCopy()
	now.Annotations = map[string]string{}
	for k, v := range written(t, w, "create") {
		now.Annotations[k] = v.(string)
	}
	now.Spec.NodeName = "n1"
	placement, err := wire.DecodePod(convert.Pod(now), granttest.Keyring("key"))
	require.NoError(t, err)
	require.Equal(t, "n1", placement.Node)
	require.Equal(t, []grant.Share{{UUID: gpu(1), MemoryMiB: 1000, CorePercent: 10}}, placement.Containers[0])
}

func TestMissingKeys(t *testing.T) {
	client := fake.NewClientset()
	f := &Factory{Log: slog.New(slog.DiscardHandler)}
	args := strings.Replace(binding, `}`, `,"grantPrivateKeyFile":"/nonexistent/keys"}`, 1)
	_, err := f.New(t.Context(), &runtime.Unknown{Raw: []byte(args)}, &handle{client: client, factory: kube.NewInformers(client)})
	require.ErrorContains(t, err, "no key to sign grants: ")
	require.ErrorContains(t, err, "/nonexistent/keys")
}

func TestPatch(t *testing.T) {
	pod := gpuPod("p", 1000, 10)
	w := reserved(t, patching, pod)
	_, status := w.PreBindPreFlight(t.Context(), w.state, pod, "n1")
	require.True(t, status.IsSuccess())
	require.True(t, w.PreBind(t.Context(), w.state, pod, "n1").IsSuccess())
	annotations := written(t, w, "patch")
	require.Contains(t, annotations[api.AnnotationGrant], gpu(1))
	require.Contains(t, annotations[api.AnnotationHAMiAllocated], gpu(1))
	require.True(t, w.PreBind(t.Context(), w.state, pod, "n1").IsSuccess(), "and again")
	w.client.ClearActions()
	require.True(t, w.Bind(t.Context(), w.state, pod, "n1").IsSuccess(), "no other plugin binds: it would not look whether it did")
	require.Contains(t, written(t, w, "create")[api.AnnotationGrant], gpu(1))
}

// TestLostAnswer: the API server binds the pod, and its answer is lost. The pod runs with
// its GPUs, and they must not be given back.
func TestLostAnswer(t *testing.T) {
	for _, args := range []string{"", binding, patching} {
		pod := gpuPod("p", 60000, 10)
		w := reserved(t, args, pod)
		w.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			b := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
			require.NoError(t, w.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), bound(pod, b.Target.Name, b.Annotations), pod.Namespace))
			return true, nil, errors.New("EOF")
		})
		require.True(t, w.PreBind(t.Context(), w.state, pod, "n1").IsSuccess())
		require.True(t, w.Bind(t.Context(), w.state, pod, "n1").IsSuccess())
		require.Equal(t, "n1", w.engine.AllocatedNode(string(pod.UID)))
	}
}

// TestUnknownResult: whether the pod was bound can't be found out before the process ends.
func TestUnknownResult(t *testing.T) {
	pod := gpuPod("p", 60000, 10)
	w := reserved(t, binding, pod)
	ctx, cancel := context.WithCancel(t.Context())
	w.client.PrependReactor("*", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, errors.New("EOF")
	})
	status := w.Bind(ctx, w.state, pod, "n1")
	require.Equal(t, fwk.Error, status.Code())
	require.Contains(t, status.Message(), "unknown whether the pod was bound")
	w.Unreserve(t.Context(), w.state, pod, "n1")
	require.Equal(t, "n1", w.engine.AllocatedNode(string(pod.UID)))
}

// TestBindReservesAgain: what was given back meanwhile is not bound.
func TestBindReservesAgain(t *testing.T) {
	pod, other := gpuPod("p", 60000, 10), gpuPod("other", 60000, 10)
	w := reserved(t, binding, pod)
	w.engine.Unreserve(string(pod.UID), owner)
	w.placed(t, other, "n1")
	status := w.Bind(t.Context(), w.state, pod, "n1")
	require.Equal(t, fwk.Error, status.Code())
	require.Contains(t, status.Message(), "less than 60000 MiB free")
	require.Empty(t, w.client.Actions())
}

// TestAnotherPluginBinds is a profile that has DefaultBinder first: pods would run without a grant.
func TestAnotherPluginBinds(t *testing.T) {
	pod := gpuPod("p", 1000, 10)
	w := reserved(t, binding, pod)
	w.PostBind(t.Context(), newState(), plainPod("x"), "n1")
	require.True(t, w.preFilter(t, gpuPod("q", 1000, 10)).IsSuccess(), "others' pods are others' to bind")

	w = reserved(t, binding, pod)
	require.True(t, w.Bind(t.Context(), w.state, pod, "n1").IsSuccess())
	w.PostBind(t.Context(), w.state, pod, "n1")
	require.True(t, w.preFilter(t, gpuPod("q", 1000, 10)).IsSuccess())

	w = reserved(t, binding, pod)
	w.PostBind(t.Context(), w.state, pod, "n1")
	status := w.preFilter(t, gpuPod("q", 1000, 10))
	require.Equal(t, fwk.Error, status.Code())
	require.Contains(t, status.Message(), "before it at the bind point")
	require.True(t, w.preFilter(t, plainPod("x")).IsSkip())
}

func TestForgedAnnotationsAreRemoved(t *testing.T) {
	forge := func(pod *v1.Pod) *v1.Pod {
		pod.Annotations = map[string]string{
			api.AnnotationGrant: "forged", api.AnnotationSignature: "forged", "hami.io/vgpu-mig-allocations": "forged",
			"tencent.com/predicate-gpu-idx-0": "7", "mine": "stays",
		}
		return pod
	}
	for _, tc := range []struct {
		name, args string
		pod        *v1.Pod
		gone       []string
		ours       bool
	}{
		{"with a patch", patching, forge(gpuPod("p", 1000, 0)), []string{api.AnnotationSignature, "hami.io/vgpu-mig-allocations", "tencent.com/predicate-gpu-idx-0"}, true},
		{"with a binding", binding, forge(gpuPod("p", 1000, 0)), []string{api.AnnotationSignature, "hami.io/vgpu-mig-allocations", "tencent.com/predicate-gpu-idx-0"}, false},
		{"a pod without GPUs", binding, forge(plainPod("p")),
			[]string{api.AnnotationGrant, api.AnnotationSignature, "hami.io/vgpu-mig-allocations", "tencent.com/predicate-gpu-idx-0"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.args, gpuNode("n1", 1, 1), tc.pod)
			status := w.preFilter(t, tc.pod)
			require.True(t, status.IsSuccess() || status.IsSkip())
			require.True(t, w.Reserve(t.Context(), w.state, tc.pod, "n1").IsSuccess())
			w.client.ClearActions()
			_, status = w.PreBindPreFlight(t.Context(), w.state, tc.pod, "n1")
			require.True(t, status.IsSuccess())
			require.True(t, w.PreBind(t.Context(), w.state, tc.pod, "n1").IsSuccess())
			annotations := written(t, w, "patch")
			for _, key := range tc.gone {
				value, there := annotations[key]
				require.True(t, there && value == nil, "%s is removed", key)
			}
			require.NotContains(t, annotations, "mine")
			ours, _ := annotations[api.AnnotationGrant].(string)
			require.Equal(t, tc.ours, strings.Contains(ours, gpu(1)))
			if tc.args == binding && cycleOf(w.state) != nil {
				w.client.ClearActions()
				require.True(t, w.Bind(t.Context(), w.state, tc.pod, "n1").IsSuccess())
				require.Contains(t, written(t, w, "create")[api.AnnotationGrant], gpu(1), "overwritten by the binding")
			}
		})
	}
}

func TestFailedWrite(t *testing.T) {
	pod := gpuPod("p", 1000, 10)
	w := reserved(t, patching, pod)
	w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("down") })
	status := w.PreBind(t.Context(), w.state, pod, "n1")
	require.Equal(t, fwk.Error, status.Code())
	require.Contains(t, status.Message(), "annotate pod ns/p: down")
	require.Equal(t, "n1", w.engine.AllocatedNode(string(pod.UID)), "Unreserve gives it back, not this")
}

func TestWithoutGPUsNothingIsWritten(t *testing.T) {
	for _, args := range []string{"", binding} {
		w := newWorld(t, args)
		_, status := w.PreBindPreFlight(t.Context(), newState(), plainPod("p"), "n1")
		require.True(t, status.IsSkip())
		require.True(t, w.Bind(t.Context(), newState(), plainPod("p"), "n1").IsSkip(), "the default binder does it")
	}
}
