package extender

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/test/migrating"
)

// The decisions of HAMi, gpu-manager and gpu-admission.
func TestMigrating(t *testing.T) {
	migrating.Replay(t, func(t *testing.T, nodes []*v1.Node) migrating.Scheduler {
		w := worldOf(t, nodes)
		return migrating.Scheduler{Engine: w.engine, Place: func(pod *v1.Pod) *v1.Pod {
			if node, _ := w.place(pod); node == "" {
				return nil
			}
			return w.cluster.named(pod.Name)
		}}
	})
}

func worldOf(t *testing.T, nodes []*v1.Node) *world {
	t.Helper()
	w := &world{t: t, now: time.Now}
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	w.engine, w.cluster = e, newCluster(t, e)
	for _, node := range nodes {
		w.nodes = append(w.nodes, node.Name)
		require.NoError(t, w.cluster.nodes.Add(node))
		e.SetNode(convert.Node(node))
	}
	w.server = New(Options{Engine: e, Cluster: w.cluster.Cluster, Version: "test"})
	server := httptest.NewServer(w.server.Handler())
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// gpu-admission prefers nodes without GPUs for pods without.
func TestPodsWithoutGPUsHaveNoPriorities(t *testing.T) {
	w := newWorld(t, 1, 1)
	require.NoError(t, w.cluster.nodes.Add(&v1.Node{}))
	names := append(w.nodes, "without")
	var list extenderv1.HostPriorityList
	w.post("/scheduler/priorities", extenderv1.ExtenderArgs{Pod: &v1.Pod{}, NodeNames: &names}, &list)
	require.Len(t, list, 2)
	require.Equal(t, list[0].Score, list[1].Score)
}
