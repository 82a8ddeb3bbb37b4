package extender

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/defrag"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

func TestDebugDefrag(t *testing.T) {
	w := newWorld(t, 2, 1)
	yes := true
	owned := func(p *v1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r", Controller: &yes}}
	}
	for i, name := range []string{"a", "b"} {
		p := pod(name, 30000, 0, owned)
		w.cluster.add(p)
		require.Empty(t, w.bind(p, w.nodes[i]))
	}
	pending := pod("p", 60000, 0)
	w.cluster.add(pending)
	nodes := []*v1.Node{{ObjectMeta: metav1.ObjectMeta{Name: w.nodes[0]}}, {ObjectMeta: metav1.ObjectMeta{Name: w.nodes[1]}}}
	mux := http.NewServeMux()
	find := func(namespace, name string) (*scheduler.Pod, error) {
		p, err := w.cluster.pods.Pods(namespace).Get(name)
		if err != nil {
			return nil, err
		}
		return convert.Pod(p), nil
	}
	HandleDebug(mux, w.engine, find, func() (pods []*v1.Pod, _ []*v1.Node) {
		for _, o := range w.cluster.index.List() {
			slim, err := kube.Slim(o)
			require.NoError(t, err)
			pods = append(pods, slim.(*v1.Pod))
		}
		return pods, nodes
	}, nil)
	get := func(query string) (int, string) {
		r := httptest.NewRecorder()
		mux.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/debug/defrag?"+query, nil))
		return r.Code, r.Body.String()
	}
	plan := func() (p defrag.Plan) {
		code, body := get("namespace=default&pod=p")
		require.Equal(t, http.StatusOK, code, body)
		require.NoError(t, json.Unmarshal([]byte(body), &p))
		return p
	}
	require.Equal(t, []defrag.Move{{Pod: "default/a", UID: "uid-a", From: w.nodes[0], To: w.nodes[1]}}, plan().Moves)
	nodes[0].Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}
	code, body := get("namespace=default&pod=p")
	require.Equal(t, http.StatusConflict, code)
	require.Contains(t, body, "no resizes or moves make room for the pod")
	nodes[0].Spec.Taints[0].Effect = v1.TaintEffectPreferNoSchedule
	require.Len(t, plan().Moves, 1)
	pending.Spec.NodeSelector = map[string]string{"zone": "b"}
	nodes[1].Labels = pending.Spec.NodeSelector
	require.Equal(t, "default/b", plan().Moves[0].Pod)
	a := w.cluster.named("b").DeepCopy()
	a.OwnerReferences = nil
	w.cluster.add(a)
	code, _ = get("namespace=default&pod=p")
	require.Equal(t, http.StatusConflict, code, "no controller creates it again")

	// The CLI waits for this before the evictions.
	w.engine.SetNode(&scheduler.Node{Name: w.nodes[0], Annotations: map[string]string{api.AnnotationNodeGPUs: register(0, 1), api.AnnotationHAMiCordon: gpuUUID(0, 0)}})
	r := httptest.NewRecorder()
	mux.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/debug/state?format=json&node="+w.nodes[0], nil))
	var state engine.State
	require.NoError(t, json.Unmarshal(r.Body.Bytes(), &state))
	require.Len(t, state.Nodes, 1)
	require.Equal(t, gpuUUID(0, 0), state.Nodes[0].GPUs[0].UUID)
	require.True(t, state.Nodes[0].GPUs[0].Cordoned)

	code, _ = get("namespace=default")
	require.Equal(t, http.StatusBadRequest, code)
	code, _ = get("namespace=default&pod=x")
	require.Equal(t, http.StatusNotFound, code)
	_, err := find("default", "x")
	require.True(t, apierrors.IsNotFound(err))
}

func TestFixed(t *testing.T) {
	yes, now := true, metav1.Now()
	of := func(kind string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: kind, Controller: &yes}}}}
	}
	require.Empty(t, fixed(of("StatefulSet")))
	require.NotEmpty(t, fixed(of("DaemonSet")))
	require.NotEmpty(t, fixed(nil))
	p := of("ReplicaSet")
	p.Annotations = map[string]string{annotationSafeToEvict: "false"}
	require.Contains(t, fixed(p), annotationSafeToEvict)
	p = of("ReplicaSet")
	p.DeletionTimestamp = &now
	require.NotEmpty(t, fixed(p))
}
