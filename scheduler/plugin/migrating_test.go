package plugin

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/test/migrating"
)

// The decisions of HAMi, gpu-manager and gpu-admission.
func TestMigrating(t *testing.T) {
	migrating.Replay(t, func(t *testing.T, nodes []*v1.Node) migrating.Scheduler {
		var objects []runtime.Object
		for _, node := range nodes {
			objects = append(objects, node)
		}
		w := newWorld(t, "", objects...)
		return migrating.Scheduler{Engine: w.engine, Place: func(pod *v1.Pod) *v1.Pod { return w.schedule(t, pod, nodes) }}
	})
}

// schedule does what kube-scheduler does with a pod; nil: it fits on none of the nodes.
func (w *world) schedule(t *testing.T, pod *v1.Pod, nodes []*v1.Node) *v1.Pod {
	t.Helper()
	w.state = newState()
	var infos []fwk.NodeInfo
	for i, node := range nodes {
		infos = append(infos, &nodeInfo{node: node, generation: int64(i + 1)})
	}
	named, status := w.PreFilter(t.Context(), w.state, pod, infos)
	require.True(t, status.IsSuccess(), status.Message())
	var fit []fwk.NodeInfo
	for _, info := range infos {
		if named.AllNodes() || named.NodeNames.Has(info.Node().Name) {
			if w.Filter(t.Context(), w.state, pod, info).IsSuccess() {
				fit = append(fit, info)
			}
		}
	}
	if len(fit) == 0 {
		return nil
	}
	require.True(t, w.PreScore(t.Context(), w.state, pod, fit).IsSuccess())
	var scores fwk.NodeScoreList
	for _, info := range fit {
		score, status := w.Score(t.Context(), w.state, pod, info)
		require.True(t, status.IsSuccess(), status.Message())
		scores = append(scores, fwk.NodeScore{Name: info.Node().Name, Score: score})
	}
	require.True(t, w.NormalizeScore(t.Context(), w.state, pod, scores).IsSuccess())
	node := slices.MaxFunc(scores, func(a, b fwk.NodeScore) int { return int(a.Score - b.Score) }).Name
	status = w.Reserve(t.Context(), w.state, pod, node)
	require.True(t, status.IsSuccess(), status.Message())
	annotations, err := w.annotations(cycleOf(w.state))
	require.NoError(t, err)
	pod = bound(pod, node, annotations)
	w.engine.SetPod(convert.Pod(pod))
	return pod
}
